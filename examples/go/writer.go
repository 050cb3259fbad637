// A writer's stream: the fastest way to save many versions.
package main

import (
	"context"
	"errors"
	"io"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The frames of a stream, across all its connections.
type writer struct {
	*thread
	opening *pb.OpenWriter
	token   int64
	number  int64            // of the last frame
	sent    []*pb.WriterSave // not answered yet
	refused []*pb.Edit       // to be sent anew
	stream  pb.WriterService_WriteClient
}

// Saves each edit as one version, and returns the first and the last one. The edits must fit any state. The stream
// holds the lease, so frames are sent before the answers to earlier ones come.
func (t *thread) stream(edits ...*pb.Edit) (first, last int64, err error) {
	opening := &pb.OpenWriter{Thread: t.name, Holder: t.holder, Term: durationpb.New(1e9), Options: newOptions()}
	w := &writer{thread: t, opening: opening, refused: edits}
	err = repeat(func() error {
		streaming, cancel := context.WithCancel(ctx)
		defer cancel() // a stream that was not ended keeps its lease for a term
		opened, err := w.open(streaming)
		if first == 0 {
			first = opened.LastVersion + 1
		}
		for err == nil && (len(w.sent) > 0 || w.refused != nil) {
			err = w.answer()
		}
		if err != nil {
			return err
		}
		if err = w.stream.CloseSend(); err == nil {
			_, err = w.stream.Recv() // the daemon has taken the lease back when it ends the stream
		}
		if err == io.EOF {
			return nil
		}
		return err
	})
	return first, t.version, err
}

// Opens the stream, for the same lease as before, and sends what was not answered again, the same.
func (w *writer) open(streaming context.Context) (opened *pb.WriterOpened, err error) {
	if w.stream, err = w.Write(streaming); err != nil {
		return nil, err
	}
	w.send(&pb.WriteRequest{Frame: &pb.WriteRequest_Open{Open: w.opening}})
	answer, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	opened = answer.GetOpened()
	if w.token != 0 && w.token != opened.Lease.Token {
		return nil, errors.New("the lease was lost: another writer may have saved") // final
	}
	w.token, w.opening.Options.ExpectedUid = opened.Lease.Token, opened.Receipt.GetUid()
	if w.refused != nil { // nothing that follows a refused frame was saved
		for _, frame := range w.sent {
			w.refused = append(w.refused, frame.Save.GetDiff().Edits...)
		}
		w.sent = nil
	}
	for _, frame := range w.sent {
		w.send(&pb.WriteRequest{Frame: &pb.WriteRequest_Save{Save: frame}})
	}
	w.sendAnew(opened.LastVersion)
	return opened, nil
}

// Sends the refused edits as new frames on top of a version.
func (w *writer) sendAnew(version int64) {
	for _, edit := range w.refused {
		save := w.next(edit)
		save.Thread, save.Options.LeaseToken = "", w.token
		save.Options.ExpectedVersion, save.Options.ExpectedDigest = proto.Int64(version), nil
		version, w.number = version+1, w.number+1
		frame := &pb.WriterSave{Frame: w.number, Save: save}
		w.sent = append(w.sent, frame)
		w.send(&pb.WriteRequest{Frame: &pb.WriteRequest_Save{Save: frame}})
	}
	w.refused = nil
}

// Takes the next answer.
func (w *writer) answer() error {
	answer, err := w.stream.Recv()
	if err != nil {
		return err
	}
	switch frame := answer.Frame.(type) {
	case *pb.WriteResponse_Saved: // frames are answered in order
		w.sent = w.sent[1:]
		w.remember(frame.Saved.Save)
	case *pb.WriteResponse_Refused:
		err := status.ErrorProto(frame.Refused.Status)
		if !hasReason(err, "VERSION_MISMATCH") && !hasReason(err, "WRITER_ABORTED") {
			return err
		}
		if w.refused == nil { // until the reset, the daemon refuses every frame
			w.send(&pb.WriteRequest{Frame: &pb.WriteRequest_Reset_{Reset_: &pb.ResetWriter{}}})
		}
		w.refused = append(w.refused, w.sent[0].Save.GetDiff().Edits...)
		w.sent = w.sent[1:]
	case *pb.WriteResponse_Reset_:
		w.sendAnew(frame.Reset_.LastVersion)
	}
	return nil
}

// Sends a frame. An error of Send is io.EOF; the next answer says why the stream has ended.
func (w *writer) send(frame *pb.WriteRequest) { _ = w.stream.Send(frame) }
