package main

import (
	"context"
	"os"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose reads a compose file with the code and the schema of Docker Compose. Variables have the values of the
// environment.
func compose(text []byte) (any, error) {
	details := types.ConfigDetails{
		WorkingDir:  "/",
		Environment: types.NewMapping(os.Environ()),
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: text}},
	}
	return loader.LoadWithContext(context.Background(), details, func(options *loader.Options) {
		options.SetProjectName("checked", true)
	})
}
