// A writer's stream: the fastest way to save many versions.
package main

import (
	"io"
	"log"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Saves each edit as one version. The stream holds the lease, so frames are sent before the answers to earlier ones
// come.
func (t *thread) stream(frames ...*pb.Edit) (first, last int64) {
	stream := must(t.Write(ctx))
	must(0, stream.Send(&pb.WriteRequest{Frame: &pb.WriteRequest_Open{Open: &pb.OpenWriter{
		Thread: t.name, Holder: t.holder, Term: durationpb.New(time.Second), RequestId: newID(),
	}}}))
	opened := must(stream.Recv()).GetOpened()
	first = opened.GetLastVersion() + 1
	for number, edit := range frames {
		save := t.next(edit)
		save.Thread, save.LeaseToken, save.ExpectedDigest = "", opened.Lease.Token, nil
		save.ExpectedVersion = proto.Int64(opened.GetLastVersion() + int64(number))
		frame := &pb.WriterSave{Frame: int64(number + 1), Save: save}
		must(0, stream.Send(&pb.WriteRequest{Frame: &pb.WriteRequest_Save{Save: frame}}))
	}
	for range frames {
		answer := must(stream.Recv())
		if refused := answer.GetRefused(); refused != nil {
			log.Fatal(refused.ReasonName, ": ", refused.Message)
		}
		t.version, t.digest = answer.GetSaved().Save.Version, answer.GetSaved().Save.Digest
	}
	must(0, stream.CloseSend())
	if _, err := stream.Recv(); err != io.EOF { // the daemon has taken the lease back when it ends the stream
		log.Fatal(err)
	}
	return first, t.version
}
