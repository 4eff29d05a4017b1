package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "switchyard.example/receiver/gen"
)

// The stream contract, switchyard.v1.Receiver/Deliver; receiver.proto has its rules. A stream has one
// goroutine that reads, one that writes, and one a message in progress: no more than the credit lets in.

const (
	windowBytes = 16 << 20
	pause       = time.Millisecond // between responses: results travel together, in few ranges
)

// session is one stream's book, of which credit and results are made.
type session struct {
	window  uint64
	mu      sync.Mutex
	next    uint64                        // number of the next delivery
	open    uint64                        // deliveries in progress
	freed   uint64                        // bytes of those that are not any more
	closing bool                          // the receiver stops: what still comes is not taken
	role    *Role                         // of the sending region, as it said last
	cancel  map[uint64]context.CancelFunc // of deliveries that have no outcome yet
	told    map[outcome][]uint64          // deliveries whose outcome is not sent yet
	wake    chan struct{}                 // there is something to send
}

// Deliver serves a stream: until the sender drains it, either side goes away, or the receiver stops.
func (r *receiver) Deliver(stream pb.Receiver_DeliverServer) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	opened := request.GetOpen()
	if opened == nil {
		return status.Error(codes.InvalidArgument, "the first request must have `open`")
	}
	if opened.Group != r.group || opened.Topic != r.topic {
		return status.Errorf(codes.NotFound, "there is no handler for %s/%s", opened.Group, opened.Topic)
	}
	s := &session{
		window: r.window, cancel: map[uint64]context.CancelFunc{}, told: map[outcome][]uint64{},
		wake: make(chan struct{}, 1),
	}
	response, _ := s.take()
	response.Accept = &pb.Accept{MaxRequestBytes: maxMessageBytes}
	if err := stream.Send(response); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.read(stream, r.handle, opened, request) }()

	var result error
	ending, stopping := false, r.stopping
	for {
		select {
		case <-s.wake:
		case err := <-ended: // nil: drained; what is in progress is still answered
			if err != nil && !ending {
				return err
			}
			ending = true
		case <-stopping:
			s.close()
			ending, stopping = true, nil
			result = status.Error(codes.Unavailable, "the receiver is shutting down")
		}
		response, idle := s.take()
		if err := stream.Send(response); err != nil {
			return err
		}
		if ending && idle {
			return result
		}
		time.Sleep(pause)
	}
}

// read takes requests; nil: the sender will send no more.
func (s *session) read(stream pb.Receiver_DeliverServer, handle Handler, opened *pb.Open, request *pb.DeliverRequest) error {
	for {
		s.giveUp(request.Canceled)
		s.hear(request.Role)
		if len(request.Batches) > 0 {
			if err := s.deliver(stream.Context(), handle, opened, request); err != nil {
				return err
			}
		}
		if request.Drain {
			return nil
		}
		var err error
		if request, err = stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// deliver starts a goroutine for each message of a request.
func (s *session) deliver(ctx context.Context, handle Handler, opened *pb.Open, request *pb.DeliverRequest) error {
	count := uint64(0)
	for _, batch := range request.Batches {
		count += uint64(len(batch.Messages))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil // without a result they are delivered again, elsewhere
	}
	if s.open+count > s.window {
		return status.Errorf(codes.InvalidArgument, "%d deliveries sent beyond the credit", count)
	}
	size := uint64(proto.Size(request))
	share := size / max(count, 1) // each delivery frees its part: one that is stuck holds on to no other's
	s.freed += size - share*count
	timeout := time.Duration(cmp.Or(opened.TimeoutMs, math.MaxUint32)) * time.Millisecond
	for _, batch := range request.Batches {
		if batch.FirstDelivery != s.next {
			return status.Errorf(codes.InvalidArgument, "delivery %d comes where %d is next", batch.FirstDelivery, s.next)
		}
		for _, sent := range batch.Messages {
			number, message := s.next, readSent(opened, batch, sent)
			message.Role = s.role
			s.next++
			s.open++
			ctx, cancel := context.WithTimeout(ctx, timeout)
			s.cancel[number] = cancel
			go func() {
				defer cancel()
				s.finish(number, share, judge(handle(ctx, message)))
			}()
		}
	}
	return nil
}

// finish books an outcome, unless the delivery was given up.
func (s *session) finish(number, share uint64, result outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, wanted := s.cancel[number]; wanted {
		delete(s.cancel, number)
		s.told[result] = append(s.told[result], number)
	}
	s.open--
	s.freed += share
	s.stir()
}

// giveUp stops what is not wanted any more; its credit is given back when its handler has ended.
func (s *session) giveUp(canceled []*pb.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range canceled {
		for number, cancel := range s.cancel { // never more than the window, unlike a range's numbers
			if span.Start <= number && number < span.End {
				delete(s.cancel, number)
				cancel()
			}
		}
	}
}

// hear notes what the sending region is, for the batches that follow. Only read has to do with it.
func (s *session) hear(role *pb.Role) {
	if role == nil {
		return // as before
	}
	s.role = nil
	if role.Region != "" {
		s.role = &Role{Region: role.Region, Primary: role.Primary, Epoch: role.Epoch}
	}
}

// close lets nothing new in.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
}

// stir wakes the writer; one mark is enough, however much there is to say.
func (s *session) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take makes a response of everything that is to be said; idle: nothing is in progress.
func (s *session) take() (response *pb.DeliverResponse, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Totals, which never shrink: what is done, and the window beyond it.
	credit := &pb.Credit{Deliveries: s.next - s.open + s.window, Bytes: s.freed + windowBytes}
	response = &pb.DeliverResponse{Credit: credit}
	if len(s.told) > 0 {
		response.Results = results(s.told)
		clear(s.told)
	}
	return response, s.open == 0
}

func readSent(opened *pb.Open, batch *pb.Batch, sent *pb.Message) *Message {
	message := &Message{
		Group: opened.Group, Topic: batch.Topic, Partition: batch.Partition,
		Offset: batch.BaseOffset + sent.OffsetDelta, Key: sent.Key, Value: sent.Value,
		TimestampMs: batch.BaseTimestampMs + sent.TimestampDeltaMs,
		RetryCount:  batch.RetryCount, Attempt: batch.Attempt, Traceparent: batch.Traceparent,
	}
	if message.Topic == "" {
		message.Topic = opened.Topic
	}
	for _, header := range sent.Headers {
		message.Headers = append(message.Headers, Header{strings.ToLower(header.Name), header.Value})
		if strings.EqualFold(header.Name, "traceparent") {
			message.Traceparent = string(header.Value)
		}
	}
	if message.Traceparent == "" {
		message.Traceparent = derivedTraceparent(message)
	}
	return message
}

// derivedTraceparent is the same for every attempt at a message: see the .proto.
func derivedTraceparent(m *Message) string {
	ids := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d/%d", m.Topic, m.Partition, m.Offset, m.TimestampMs))
	return fmt.Sprintf("00-%x-%x-00", ids[:16], ids[16:24])
}
