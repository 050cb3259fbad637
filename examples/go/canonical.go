package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
)

// The canonical form of a state: the same state has the same bytes in every language.
func canonical(state *pb.State) []byte {
	var form bytes.Buffer
	field := func(content []byte) { fmt.Fprintf(&form, "%d:%s", len(content), content) }
	number := func(content int64) { field(strconv.AppendInt(nil, content, 10)) }
	value := func(value *pb.Value) {
		field([]byte(value.MediaType))
		switch content := value.Content.(type) {
		case *pb.Value_Data:
			field([]byte("data"))
			field(content.Data)
		case *pb.Value_Number:
			field([]byte("number"))
			number(content.Number)
		case *pb.Value_Blob:
			field([]byte("blob"))
			field(content.Blob.Sha256)
		default:
			field(nil)
			field(nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Slots)) {
		field([]byte("slot"))
		field([]byte(name))
		value(state.Slots[name])
	}
	for _, name := range slices.Sorted(maps.Keys(state.Logs)) {
		log := state.Logs[name]
		field([]byte("log"))
		field([]byte(name))
		number(log.GetFirstIndex())
		number(log.RewrittenVersion)
		number(int64(len(log.Entries)))
		for _, entry := range log.Entries {
			value(entry)
		}
	}
	return form.Bytes()
}
