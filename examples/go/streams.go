// Streams that go on after a break: watches, and blobs in both directions.
package main

import (
	"context"
	"crypto/sha256"
	"io"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/protobuf/proto"
)

const messageBytes = 1 << 20

// Follows the events of the thread after a sequence until take returns false. A watch that breaks goes on after the
// last cursor, for as long as it takes.
func (t *thread) watch(after int64, take func(*pb.JournalEvent) bool) error {
	request := &pb.WatchRequest{Thread: t.name, AfterSequence: proto.Int64(after)}
	for attempt := 0; ; attempt++ {
		cursor := request.AfterCursor
		err := t.follow(request, take)
		if err == nil || err == io.EOF {
			return nil
		}
		if request.AfterCursor != cursor {
			attempt = 0
		}
		pause, again := pauseAfter(err, attempt)
		if !again {
			return err
		}
		time.Sleep(pause)
	}
}

// Follows one stream until it breaks.
func (t *thread) follow(request *pb.WatchRequest, take func(*pb.JournalEvent) bool) error {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.Watch(streaming, request)
	for err == nil {
		var message *pb.WatchResponse
		if message, err = stream.Recv(); err == nil {
			for _, event := range message.Events {
				if !take(event) {
					return nil
				}
			}
			request.AfterCursor = message.Cursor // of every message, also of one without events
		}
	}
	return err
}

// Writes a blob. One that breaks off is written again from its first byte. A save then names the reference.
func (t *thread) writeBlob(data []byte) (blob *pb.BlobRef, err error) {
	sum := sha256.Sum256(data)
	begin := &pb.BlobBegin{Thread: t.name, Sha256: sum[:], SizeBytes: proto.Int64(int64(len(data)))}
	err = repeat(func() error {
		stream, err := t.WriteBlob(ctx)
		if err != nil {
			return err
		}
		// An error of Send is io.EOF; the answer says why the stream has ended.
		err = stream.Send(&pb.WriteBlobRequest{Part: &pb.WriteBlobRequest_Begin{Begin: begin}})
		for rest := data; len(rest) > 0 && err == nil; rest = rest[min(messageBytes, len(rest)):] {
			piece := rest[:min(messageBytes, len(rest))]
			err = stream.Send(&pb.WriteBlobRequest{Part: &pb.WriteBlobRequest_Data{Data: piece}})
		}
		written, err := stream.CloseAndRecv()
		blob = written.GetBlob()
		return err
	})
	return blob, err
}

// Reads a blob. After a break it goes on at the next byte.
func (t *thread) readBlob(blob *pb.BlobRef) (data []byte, err error) {
	err = repeat(func() error {
		request := &pb.ReadBlobRequest{Thread: t.name, Blob: blob, Offset: int64(len(data))}
		stream, err := t.ReadBlob(ctx, request)
		for err == nil {
			var message *pb.ReadBlobResponse
			message, err = stream.Recv()
			data = append(data, message.GetData()...)
		}
		if err == io.EOF {
			return nil
		}
		return err
	})
	return data, err
}
