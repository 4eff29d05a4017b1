package main

import (
	"context"
	"flag"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
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

var (
	benchDelayMs   = flag.Int64("bench-delay-ms", 0, "how long a call of the bench's service lasts")
	benchAtOnce    = flag.Int("bench-at-once", 0, "how many of them it works on at a time, 0: all; the others wait")
	benchLatencies = flag.String("bench-latencies", "", "file that counts how old the messages were, see tests/bench/latency")
)

const (
	latencyStepNs = 50_000
	latencyCells  = 20_001
)

// openLatencies maps the file that all sides of the bench count in.
func openLatencies(path string) ([]uint64, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := syscall.Mmap(int(file.Fd()), 0, latencyCells*8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&data[0])), latencyCells), nil
}

// noteLatency counts the message of a call by the time since its append.
func noteLatency(cells []uint64, ctx context.Context) {
	values := metadata.ValueFromIncomingContext(ctx, "kafka-timestamp")
	if len(values) != 1 {
		return
	}
	appendedMs, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return
	}
	step := (time.Now().UnixNano() - appendedMs*1_000_000) / latencyStepNs
	atomic.AddUint64(&cells[min(max(step, 0), latencyCells-1)], 1)
}

var latencies []uint64

// slots has an element for each call that may begin; nil: all may.
var slots chan struct{}

func makeSlots(count int) chan struct{} {
	made := make(chan struct{}, count)
	for range count {
		made <- struct{}{}
	}
	return made
}

// benchService answers every message with an empty one, at the least cost, and after --bench-delay-ms.
var benchService = grpc.ServiceDesc{
	ServiceName: "switchyard.bench.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			err := decode(nothing)
			if latencies != nil {
				noteLatency(latencies, ctx)
			}
			if slots != nil {
				<-slots
				defer func() { slots <- struct{}{} }()
			}
			time.Sleep(time.Duration(*benchDelayMs) * time.Millisecond) // returns at once for 0
			return nothing, err
		},
	}},
}
