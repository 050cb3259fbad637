// Calls that outlive a daemon that is away, and the reasons of errors.
package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	callTime = 5 * time.Second  // of one attempt
	patience = 30 * time.Second // for all attempts
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

type method[Q, A any] = func(context.Context, Q, ...grpc.CallOption) (A, error)

// Sends a request until it is answered. A write carries a request id, so the daemon applies it once. The retry policy of
// the service config stops after five attempts, and repeats no call whose answer has begun to come.
func call[Q, A any](send method[Q, A], request Q) (answer A, err error) {
	err = repeat(func() error {
		attempt, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		answer, err = send(attempt, request)
		return err
	})
	return answer, err
}

// Repeats an attempt until it succeeds, fails for good, or the client has no patience left.
func repeat(attempt func() error) error {
	for number, end := 0, time.Now().Add(patience); ; number++ {
		err := attempt()
		if err == nil {
			return nil
		}
		pause, again := pauseAfter(err, number)
		if !again || time.Now().Add(pause).After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

// Returns for how long to wait before another attempt, and whether one may succeed.
func pauseAfter(err error, attempt int) (time.Duration, bool) {
	said, isOfCall := status.FromError(err)
	reason, facts := explain(err)
	if seconds, absent := strconv.ParseFloat(facts["free_in_s"], 64); reason == "NOT_OWNER" && absent == nil {
		return max(time.Duration(seconds*float64(time.Second)), minPause), true
	}
	for _, detail := range said.Details() {
		if told, ok := detail.(*errdetails.RetryInfo); ok && isOfCall {
			return told.RetryDelay.AsDuration(), true
		}
	}
	passing := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown}
	if !isOfCall || !slices.Contains(passing, said.Code()) && reason != "QUEUE_FULL" {
		return 0, false
	}
	// Many clients that lost the same daemon do not come back all at once.
	pause := min(minPause<<min(attempt, 5), maxPause)
	return time.Duration(float64(pause) * (0.5 + rand.Float64()/2)), true
}

// Returns why the daemon refused a call, and the facts that error_reason.proto names for the reason. The reason is
// empty if the error comes from gRPC itself.
func explain(err error) (string, map[string]string) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "stateward" {
			return info.Reason, info.Metadata
		}
	}
	return "", nil
}

func hasReason(err error, reason string) bool {
	found, _ := explain(err)
	return found == reason
}
