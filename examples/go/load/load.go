// Package load puts a server under load for a short time: it reads a job as JSON from stdin, and prints what it measured as
// JSON. `make bench` uses it for Stateward's compiled figures, through `agent load`, and for those of other servers.
//
// Each lane saves to a thread of its own, one save after the other, so that nothing conflicts: as many lanes as calls in
// flight. Messages are bytes in here: a prepared body, to which a lane adds the few fields that change. So the figures are
// those of the server, and hardly those of this client.
package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// More than the job's time: the load ends with an error instead of waiting for a server that no longer answers.
const graceS = 30

// Job says what is measured.
type Job struct {
	System      string  `json:"system"`
	Address     string  `json:"address"`
	InFlight    int     `json:"in_flight"`
	Connections int     `json:"connections"` // of gRPC; the other libraries open one for each call in flight
	Seconds     float64 `json:"seconds"`
	Prefix      string  `json:"prefix"` // of the threads' names; new in each job
	// What is saved. Stateward and the echo: a SaveRequest without thread, version and request id; others: the value.
	Bodies [][]byte `json:"bodies"`
}

// Result is what was measured.
type Result struct {
	Calls   int     `json:"calls"`   // within the time
	AllMade int     `json:"made"`    // with those of the warm-up
	Seconds float64 `json:"seconds"` // from the first call until the last answer
	P50ms   float64 `json:"p50_ms"`
	P99ms   float64 `json:"p99_ms"`
}

// Saver saves a body as the next version of a lane's thread.
type Saver func(ctx context.Context, lane int, thread string, version int, body []byte) error

// Opener connects to the server of a job.
type Opener func(context.Context, Job) (Saver, error)

// Run does the job on stdin. It knows the systems that have an opener.
func Run(openers map[string]Opener) error {
	var work Job
	if err := json.NewDecoder(os.Stdin).Decode(&work); err != nil {
		return err
	}
	open, known := openers[work.System]
	if !known || work.InFlight < 1 || work.Connections < 1 || len(work.Bodies) == 0 {
		return fmt.Errorf("not a job: system %q", work.System)
	}
	limit := time.Duration((work.Seconds + graceS) * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	save, err := open(ctx, work)
	if err != nil {
		return err
	}
	// The warm-up makes every connection and every thread.
	if _, err = fly(ctx, work, save, 0, 0); err != nil {
		return err
	}
	start := time.Now()
	taken, err := fly(ctx, work, save, 1, time.Duration(work.Seconds*float64(time.Second)))
	if err != nil {
		return err
	}
	found := Result{Calls: len(taken), AllMade: len(taken) + work.InFlight, Seconds: time.Since(start).Seconds()}
	slices.Sort(taken)
	found.P50ms, found.P99ms = quantile(taken, 0.50), quantile(taken, 0.99)
	return json.NewEncoder(os.Stdout).Encode(found)
}

// Runs all lanes at once, from a version on, each until the time is over and at least once. Returns what each call took.
func fly(ctx context.Context, work Job, save Saver, version int, limit time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lanes := make([][]time.Duration, work.InFlight)
	end := time.Now().Add(limit)
	var group sync.WaitGroup
	for lane := range work.InFlight {
		group.Add(1)
		go func() {
			defer group.Done()
			thread := fmt.Sprintf("%s-%d", work.Prefix, lane)
			for at := version; at == version || time.Now().Before(end); at++ {
				start := time.Now()
				if err := save(ctx, lane, thread, at, work.Bodies[(lane+at)%len(work.Bodies)]); err != nil {
					cancel(fmt.Errorf("%s, version %d: %w", thread, at, err)) // the first error ends all lanes
					return
				}
				lanes[lane] = append(lanes[lane], time.Since(start))
			}
		}()
	}
	group.Wait()
	return slices.Concat(lanes...), context.Cause(ctx)
}

// Returns a quantile of sorted times in milliseconds.
func quantile(sorted []time.Duration, share float64) float64 {
	place := min(int(math.Floor(share*float64(len(sorted)))), len(sorted)-1)
	return float64(sorted[place].Nanoseconds()) / 1e6
}

// Messages are bytes already.
type rawCodec struct{}

func (rawCodec) Name() string                      { return "proto" }
func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = data
	return nil
}

// Encoder makes the message of a call from a prepared body.
type Encoder func(thread string, version int, body []byte) []byte

// Grpc calls a method with prepared messages.
func Grpc(method string, encode Encoder) Opener {
	return func(_ context.Context, work Job) (Saver, error) {
		connections := make([]*grpc.ClientConn, work.Connections)
		for number := range connections {
			connection, err := grpc.NewClient(work.Address, grpc.WithNoProxy(),
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
			if err != nil {
				return nil, err
			}
			connections[number] = connection
		}
		return func(ctx context.Context, lane int, thread string, version int, body []byte) error {
			request, answer := encode(thread, version, body), []byte(nil)
			return connections[lane%len(connections)].Invoke(ctx, method, &request, &answer)
		}, nil
	}
}

// SaveRequest makes a stateward.v1.SaveRequest: thread = 2, options = 3 with request_id = 1 and expected_version = 3; the body has
// the other fields.
func SaveRequest(thread string, version int, body []byte) []byte {
	options := protowire.AppendTag(make([]byte, 0, 64), 1, protowire.BytesType)
	options = protowire.AppendString(options, fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()))
	options = protowire.AppendTag(options, 3, protowire.VarintType)
	options = protowire.AppendVarint(options, uint64(version))
	request := make([]byte, 0, len(body)+len(thread)+len(options)+64)
	request = protowire.AppendTag(append(request, body...), 2, protowire.BytesType)
	request = protowire.AppendTag(protowire.AppendString(request, thread), 3, protowire.BytesType)
	return protowire.AppendBytes(request, options)
}
