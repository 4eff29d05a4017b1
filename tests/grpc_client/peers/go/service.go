package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"switchyard.example/peer/pb"
)

const (
	initialKey  = "x-grpc-test-echo-initial"
	trailingKey = "x-grpc-test-echo-trailing-bin"
)

type service struct {
	pb.UnimplementedTestServiceServer
}

func (service) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) {
	return &pb.Empty{}, nil
}

func (service) UnaryCall(ctx context.Context, request *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if err := answerMetadata(ctx); err != nil {
		return nil, err
	}
	if request.GetResponseCompressed().GetValue() {
		_ = grpc.SetSendCompressor(ctx, "gzip") // an error: the client does not accept it
	}
	if err := sleep(ctx, time.Duration(number(ctx, "x-test-sleep-ms"))*time.Millisecond); err != nil {
		return nil, err
	}
	if err := wantedStatus(ctx, request.GetResponseStatus()); err != nil {
		return nil, err
	}
	return &pb.SimpleResponse{Payload: zeros(request.GetResponseSize())}, nil
}

func (service) StreamingOutputCall(
	request *pb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[pb.StreamingOutputCallResponse],
) error {
	if err := answerMetadata(stream.Context()); err != nil {
		return err
	}
	return answer(stream.Context(), request, stream.Send)
}

func (service) FullDuplexCall(
	stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse],
) error {
	if err := answerMetadata(stream.Context()); err != nil {
		return err
	}
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := answer(stream.Context(), request, stream.Send); err != nil {
			return err
		}
	}
}

// answer sends the responses that a request asks for. The first request of a call decides on compression.
func answer(
	ctx context.Context, request *pb.StreamingOutputCallRequest, send func(*pb.StreamingOutputCallResponse) error,
) error {
	for _, parameters := range request.GetResponseParameters() {
		if parameters.GetCompressed().GetValue() {
			_ = grpc.SetSendCompressor(ctx, "gzip") // an error: headers are sent, or the client does not accept it
		}
	}
	for _, parameters := range request.GetResponseParameters() {
		if err := sleep(ctx, time.Duration(parameters.GetIntervalUs())*time.Microsecond); err != nil {
			return err
		}
		if err := send(&pb.StreamingOutputCallResponse{Payload: zeros(parameters.GetSize())}); err != nil {
			return err
		}
	}
	return wantedStatus(ctx, request.GetResponseStatus())
}

// answerMetadata sets the metadata that the call's metadata asks for.
func answerMetadata(ctx context.Context) error {
	initial, trailing := metadata.MD{}, metadata.MD{}
	initial.Append(initialKey, metadata.ValueFromIncomingContext(ctx, initialKey)...)
	trailing.Append(trailingKey, metadata.ValueFromIncomingContext(ctx, trailingKey)...)
	if letters := number(ctx, "x-test-big-trailer"); letters > 0 {
		trailing.Set("x-test-big", strings.Repeat("x", letters))
	}
	if err := grpc.SetHeader(ctx, initial); err != nil {
		return err
	}
	return grpc.SetTrailer(ctx, trailing)
}

// wantedStatus is the error that a request asks for, nil for none.
func wantedStatus(ctx context.Context, wanted *pb.EchoStatus) error {
	if wanted.GetCode() == 0 {
		return nil
	}
	found := status.New(codes.Code(wanted.GetCode()), wanted.GetMessage())
	if number(ctx, "x-test-details") == 0 {
		return found.Err()
	}
	detailed, err := found.WithDetails(wanted)
	if err != nil {
		return err
	}
	return detailed.Err()
}

// number is the integer in the call's metadata, 0 without one.
func number(ctx context.Context, key string) int {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		return 0
	}
	found, _ := strconv.Atoi(values[0])
	return found
}

func sleep(ctx context.Context, duration time.Duration) error {
	if duration <= 0 {
		return nil
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func zeros(size int32) *pb.Payload {
	return &pb.Payload{Body: make([]byte, size)}
}
