package main

import (
	"context"
	"flag"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// ignored is a message whose bytes nobody reads; as an answer it is empty.
type ignored struct{}

// codec leaves ignored messages alone, and encodes all others as gRPC does.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(value any) (mem.BufferSlice, error) {
	if _, ok := value.(*ignored); ok {
		return nil, nil
	}
	return c.CodecV2.Marshal(value)
}

func (c codec) Unmarshal(data mem.BufferSlice, value any) error {
	if _, ok := value.(*ignored); ok {
		return nil
	}
	return c.CodecV2.Unmarshal(data, value)
}

var nothing = &ignored{}

var benchDelayMs = flag.Int64("bench-delay-ms", 0, "how long a call of the bench's service lasts")

// benchService answers every message with an empty one, at the least cost, and after --bench-delay-ms.
var benchService = grpc.ServiceDesc{
	ServiceName: "switchyard.bench.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			err := decode(nothing)
			time.Sleep(time.Duration(*benchDelayMs) * time.Millisecond) // returns at once for 0
			return nothing, err
		},
	}},
}
