// Edits and values in few words.
package main

import pb "github.com/stateward/stateward/gen/go/stateward/v1"

func set(slot string, value *pb.Value) *pb.Edit {
	return &pb.Edit{Edit: &pb.Edit_SetSlot{SetSlot: &pb.SetSlot{Slot: slot, Value: value}}}
}

func add(log string, entries ...*pb.Value) *pb.Edit {
	return &pb.Edit{Edit: &pb.Edit_Append{Append: &pb.Append{Log: log, Entries: entries}}}
}

func text(words string) *pb.Value {
	return &pb.Value{MediaType: "text/plain", Content: &pb.Value_Data{Data: []byte(words)}}
}

func binary(data []byte) *pb.Value {
	return &pb.Value{MediaType: "application/octet-stream", Content: &pb.Value_Data{Data: data}}
}
