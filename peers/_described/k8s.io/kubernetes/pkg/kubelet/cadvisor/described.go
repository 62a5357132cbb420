package cadvisor

import (
	"encoding/json"
	"fmt"
	"os"

	cadvisorapi "github.com/google/cadvisor/lib/model"
)

// described returns the machine in the file named by DESCRIBED_MACHINE, in cAdvisor's format. Anything that the file
// leaves out is taken from this machine.
func described(found *cadvisorapi.MachineInfo, err error) (*cadvisorapi.MachineInfo, error) {
	file := os.Getenv("DESCRIBED_MACHINE")
	if err != nil || file == "" {
		return found, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	machine := found.Clone()
	machine.Topology = nil // otherwise nodes of this machine show through
	if err := json.Unmarshal(text, machine); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return machine, nil
}
