package rest
type Config struct{}
