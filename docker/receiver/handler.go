package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// demo does what each message tells it, {"id": "a", "behaviour": "ok|slow|skip|retryable|poison|crash",
// "ms": 50, "fails": 1}, and keeps a journal. Put your own work in its place.
type demo struct {
	journal *os.File // appended to with one write a line, before the answer is given
	mu      sync.Mutex
	seen    map[string]int
}

func (d *demo) handle(ctx context.Context, message *Message) error {
	body := struct {
		ID, Behaviour string
		Ms, Fails     int
	}{Behaviour: "ok", Fails: 1}
	if err := json.Unmarshal(message.Value, &body); err != nil {
		d.note(message, "", "poison")
		return &Stash{Reason: "the body is no JSON: " + err.Error()}
	}
	d.mu.Lock()
	d.seen[body.ID]++
	failsNow := d.seen[body.ID] <= body.Fails
	d.mu.Unlock()

	switch {
	case body.Behaviour == "poison":
		d.note(message, body.ID, "poison")
		return &Stash{Reason: "poison: cannot ever be handled"}
	case body.Behaviour == "skip":
		d.note(message, body.ID, "skip")
		return ErrSkip
	case body.Behaviour == "retryable" && failsNow:
		d.note(message, body.ID, "retryable")
		return &Retry{After: time.Duration(body.Ms) * time.Millisecond, Reason: "not now"}
	case body.Behaviour == "crash" && failsNow:
		d.note(message, body.ID, "crash")
		panic("the handler crashed, as the message told it to")
	case body.Behaviour == "slow":
		select {
		case <-time.After(time.Duration(body.Ms) * time.Millisecond):
		case <-ctx.Done(): // not wanted any more, or too late: stop at once, nobody reads the answer
			d.note(message, body.ID, "canceled")
			return ctx.Err()
		}
	}
	d.note(message, body.ID, "ok")
	return nil
}

func (d *demo) note(message *Message, id, outcome string) {
	fields := map[string]any{
		"id": id, "outcome": outcome, "topic": message.Topic, "group": message.Group,
		"partition": message.Partition, "offset": message.Offset, "key": message.Key, "headers": message.Headers,
		"timestamp_ms": message.TimestampMs, "retry_count": message.RetryCount, "attempt": message.Attempt,
		"traceparent": message.Traceparent, "tombstone": message.Value == nil,
	}
	if role := message.Role; role != nil {
		fields["region"], fields["primary"], fields["epoch"] = role.Region, role.Primary, role.Epoch
	}
	line, err := json.Marshal(fields)
	if err == nil {
		_, err = d.journal.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
	}
}
