package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// Message is a record. Topic, Partition and Offset name where it was first produced, also on retries: they
// make an idempotency key, which at-least-once delivery needs.
type Message struct {
	Group, Topic        string
	Partition           int32
	Offset              int64
	Key, Value          []byte // nil: absent; a record without a value is a tombstone
	Headers             []Header
	TimestampMs         int64
	RetryCount, Attempt uint32 // deliveries from retry topics before this one; which delivery this is, from 1
	Traceparent         string
	Role                *Role // nil: of a workload of one region
}

// Role says what the region that sends is for a workload of several: whether it is the primary (active) one,
// and the epoch under which it is, or another one is. An epoch is one region's alone, so a handler that takes
// nothing from a lower epoch than it has seen is never led by two regions at once.
type Role struct {
	Region  string
	Primary bool
	Epoch   uint64
}

// Header is a record header, its name in lower case.
type Header struct {
	Name  string
	Value []byte
}

// Handler does the work. It runs in many goroutines at once; per-key or per-partition order, where the
// workload asks for it, is Switchyard's to keep. ctx ends when the message is not wanted any more.
//
//	nil           acknowledged
//	ErrSkip       acknowledged, counted as not for us
//	*Retry        to the retry topic
//	*Stash        to the dead letter queue
//	other, panic  delivered again a few times, then to the retry topic, then to the dead letter queue
type Handler func(ctx context.Context, message *Message) error

// ErrSkip says that the message is not for this receiver.
var ErrSkip = errors.New("not for this receiver")

// Retry says: not now. After is a wish; the tier's delay decides.
type Retry struct {
	After  time.Duration
	Reason string
}

func (r *Retry) Error() string { return "retry: " + r.Reason }

// Stash says: never.
type Stash struct{ Reason string }

func (s *Stash) Error() string { return "stash: " + s.Reason }

type kind int

const (
	acknowledged kind = iota
	skipped
	retried
	stashed
	failed
)

// outcome is what both contracts tell of a delivery; comparable, so that equal ones share ranges.
type outcome struct {
	kind    kind
	afterMs uint32
	text    string
}

// judge turns a handler's error into an outcome.
func judge(err error) outcome {
	var retry *Retry
	var stash *Stash
	switch {
	case err == nil:
		return outcome{}
	case errors.Is(err, ErrSkip):
		return outcome{kind: skipped}
	case errors.As(err, &retry):
		afterMs := min(max(retry.After.Milliseconds(), 0), 1<<32-1)
		return outcome{kind: retried, afterMs: uint32(afterMs), text: clean(retry.Reason)}
	case errors.As(err, &stash):
		return outcome{kind: stashed, text: clean(stash.Reason)}
	default:
		return outcome{kind: failed, text: clean(err.Error())}
	}
}

// clean keeps what protobuf takes as text and Switchyard keeps: UTF-8, 500 characters.
func clean(text string) string {
	runes := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	return string(runes[:min(len(runes), 500)])
}

// recovered makes panics errors: one message must not end the process, and with it all others.
func recovered(handle Handler) Handler {
	return func(ctx context.Context, message *Message) (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				debug.PrintStack()
				err = fmt.Errorf("panic: %v", cause)
			}
		}()
		return handle(ctx, message)
	}
}
