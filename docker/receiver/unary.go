package main

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers "proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The unary contract: /kafka.consumerproxy.<group>/<topic>, one call a message. The request is the record's
// value as it is, the answer is empty, everything else travels as metadata and trailers.

// unaryService describes the method by hand, as its name is known at run time only and no .proto has it.
func (r *receiver) unaryService() *grpc.ServiceDesc {
	call := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var value []byte
		if err := decode(&value); err != nil {
			return nil, err
		}
		incoming, _ := metadata.FromIncomingContext(ctx)
		return &[]byte{}, answer(ctx, judge(r.handle(ctx, readMessage(value, incoming))))
	}
	return &grpc.ServiceDesc{
		ServiceName: "kafka.consumerproxy." + r.group,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: r.topic, Handler: call}},
	}
}

// answer tells the outcome as status and trailers.
func answer(ctx context.Context, result outcome) error {
	action := func(name string, more ...string) {
		// Fails only after the call's end, when nobody reads it.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(append([]string{"kafka-action", name}, more...)...))
	}
	switch result.kind {
	case skipped:
		action("Skip")
	case retried:
		if result.afterMs > 0 {
			action("Retry", "kafka-retry-after-ms", strconv.FormatUint(uint64(result.afterMs), 10))
		} else {
			action("Retry")
		}
		return status.Error(codes.ResourceExhausted, result.text)
	case stashed:
		action("Stash")
		return status.Error(codes.FailedPrecondition, result.text)
	case failed:
		return status.Error(codes.Unknown, result.text)
	}
	return nil
}

// readMessage puts a message together. Numbers that cannot be read count as 0. Headers of one name stay in
// order; between names gRPC's map has none.
func readMessage(value []byte, incoming metadata.MD) *Message {
	text := func(name string) string {
		if values := incoming.Get(name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	number := func(name string) int64 {
		parsed, _ := strconv.ParseInt(text(name), 10, 64)
		return parsed
	}
	message := &Message{
		Group: text("kafka-consumergroup"), Topic: text("kafka-topic"),
		Partition: int32(number("kafka-partition")), Offset: number("kafka-offset"),
		Value: value, TimestampMs: number("kafka-timestamp"),
		RetryCount: uint32(number("kafka-retrycount")), Attempt: uint32(number("kafka-attemptcount")),
		Traceparent: text("traceparent"),
	}
	if keys := incoming.Get("kafka-key-bin"); len(keys) > 0 {
		message.Key = []byte(keys[0])
	}
	if region := text("switchyard-region"); region != "" {
		epoch := uint64(number("switchyard-primary-epoch"))
		message.Role = &Role{Region: region, Primary: text("switchyard-primary") == "true", Epoch: epoch}
	}
	if len(value) == 0 && text("kafka-value-null") != "true" {
		message.Value = []byte{} // gRPC makes it nil, as a tombstone's is
	}
	for name, values := range incoming {
		if name, found := strings.CutPrefix(name, "kafka-header-"); found {
			for _, value := range values {
				header := Header{Name: strings.TrimSuffix(name, "-bin"), Value: []byte(value)}
				message.Headers = append(message.Headers, header)
			}
		}
	}
	return message
}

// rawCodec leaves bytes as they are, and everything else to protobuf.
type rawCodec struct{ encoding.CodecV2 }

func newRawCodec() rawCodec { return rawCodec{encoding.GetCodecV2("proto")} }

func (c rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	if raw, ok := value.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
	}
	return c.CodecV2.Marshal(value)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	if raw, ok := value.(*[]byte); ok {
		*raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, value)
}
