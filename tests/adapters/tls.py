"""A certificate authority, a certificate for 127.0.0.1 and localhost, and a node's own; good for a hundred years.

They are for tests only. Made with `openssl req -x509 -newkey ec -days 36500` and `openssl x509 -req -days 36500`; the
authority's key is gone. The node's certificate is its own authority.
"""

import ssl
import tempfile

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBojCCAUmgAwIBAgIUAcUL/VzBxWH5f9VkxPVxTdj3RTswCgYIKoZIzj0EAwIw
HjEcMBoGA1UEAwwTZGV2aWNlY29yZSB0ZXN0cyBDQTAgFw0yNjExMjEwMjE5NDda
GA8yMTI2MTAyODAyMTk0N1owHjEcMBoGA1UEAwwTZGV2aWNlY29yZSB0ZXN0cyBD
QTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABC/oVBhQsUPQlCpNZ4QKGU+Awrvb
dqWyvbgXfbot4pNrWO/27TaZN5BYJBgMtupCCQaiIgcaRs3lf7xWoBA9YLWjYzBh
MB0GA1UdDgQWBBSwIxlcKdJp0Qgcsyr93qLmq1Q1WTAfBgNVHSMEGDAWgBSwIxlc
KdJp0Qgcsyr93qLmq1Q1WTAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQEAwIB
BjAKBggqhkjOPQQDAgNHADBEAiADnevnfWEoxrhLyAKDkcIQGBLDCamAZRDKsSA9
nyV6KwIgag3vLibxc4ospNdkbhdKalHEpanCSaK42O/R0M1ubbg=
-----END CERTIFICATE-----
"""

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIByTCCAW+gAwIBAgIUNitLEuQUx1WnozyZkz89UJVCSHwwCgYIKoZIzj0EAwIw
HjEcMBoGA1UEAwwTZGV2aWNlY29yZSB0ZXN0cyBDQTAgFw0yNjExMjEwMjE5NDda
GA8yMTI2MTAyODAyMTk0N1owFDESMBAGA1UEAwwJMTI3LjAuMC4xMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEFcC/8vXOSpnqz5EK1fEcYt9d7CVbg4gYHp8zJVIS
hhkqmfYxuJfAK6yeYZXYoB4SSNoescTeuqQENvH64NgDE6OBkjCBjzAMBgNVHRMB
Af8EAjAAMA4GA1UdDwEB/wQEAwIHgDATBgNVHSUEDDAKBggrBgEFBQcDATAaBgNV
HREEEzARhwR/AAABgglsb2NhbGhvc3QwHQYDVR0OBBYEFJCOjkNUeKwhYTg9jFyf
FE7MsxSYMB8GA1UdIwQYMBaAFLAjGVwp0mnRCByzKv3eouarVDVZMAoGCCqGSM49
BAMCA0gAMEUCIEdTJiL2F6o3p8jvBqjazMDwrx0j4xVOpPYJngAZPdcHAiEAymFn
aZm6P9K231E5TPlmi+fhe54LpFKWHTzNp5giXus=
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxTj1waWJX6PXj9y0
Be1PNCIz8XSiBCWurkS1E7vc2+qhRANCAAQVwL/y9c5KmerPkQrV8Rxi313sJVuD
iBgenzMlUhKGGSqZ9jG4l8ArrJ5hldigHhJI2h6xxN66pAQ28frg2AMT
-----END PRIVATE KEY-----
"""

NODE_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIB5DCCAYugAwIBAgIUWz1ioDzSDsdQ4mK4SaEC37FG7WYwCgYIKoZIzj0EAwIw
NjEVMBMGA1UECgwMc3lzdGVtOm5vZGVzMR0wGwYDVQQDDBRzeXN0ZW06bm9kZTp3
b3JrZXItMTAgFw0yNjExMjEwNTAzMDRaGA8yMTI2MTAyODA1MDMwNFowNjEVMBMG
A1UECgwMc3lzdGVtOm5vZGVzMR0wGwYDVQQDDBRzeXN0ZW06bm9kZTp3b3JrZXIt
MTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABCq2NxR9wRnIp33P0Z6nc8TKsipA
i5/7KXWJ/143/sal1wWxOfDhbqpsOdqbxaO9GouyadYl6N66GpajSDsqG7yjdTBz
MB0GA1UdDgQWBBTrRJzpHuCSWs+F1ZavwfvO0vYYIDAfBgNVHSMEGDAWgBTrRJzp
HuCSWs+F1ZavwfvO0vYYIDATBgNVHSUEDDAKBggrBgEFBQcDAjAOBgNVHQ8BAf8E
BAMCB4AwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNHADBEAiAqXpaqObLsTJx/
SPTwB/kYv0+hO6o3wInt0Xql5rm7+QIgMCgPpG+AN3mjE41PLdw4gFvmUm8NuSr1
EW46xnsv6iM=
-----END CERTIFICATE-----
"""

NODE_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWl9INMfLyxiJpiy/
4ifZhK/XWLmBXJMYk3Jj4FOlz2WhRANCAAQqtjcUfcEZyKd9z9Gep3PEyrIqQIuf
+yl1if9eN/7GpdcFsTnw4W6qbDnam8WjvRqLsmnWJejeuhqWo0g7Khu8
-----END PRIVATE KEY-----
"""


def server_context(*, mutual: bool = False) -> ssl.SSLContext:
    """The context of a server with this certificate; if `mutual`, clients must show the node's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if mutual:
        context.load_verify_locations(cadata=NODE_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as chain:  # the ssl module reads them from files only
        chain.write(CERTIFICATE + KEY)
        chain.flush()
        context.load_cert_chain(chain.name)
    return context
