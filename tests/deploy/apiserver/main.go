// Command apiserver asks the API server's own code about manifests. It reads YAML from standard input and writes JSON.
//
//	apiserver check   decodes, defaults and validates each object, and the pods that workloads would make
//	apiserver admit   applies the mutating policies among the objects to each Pod, then validates it
//	apiserver compose reads a compose file as Docker Compose does, and writes the project
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: apiserver check|admit|compose <FILE")
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var answer any
	switch arguments[0] {
	case "check":
		answer, err = check(text)
	case "admit":
		answer, err = admit(text)
	case "compose":
		answer, err = compose(text)
	default:
		err = fmt.Errorf("no such command: %s", arguments[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}
