package main

import (
	"slices"

	"google.golang.org/grpc/codes"

	pb "switchyard.example/receiver/gen"
)

// results says outcomes in as few ranges as it takes.
func results(told map[outcome][]uint64) *pb.Results {
	said := &pb.Results{}
	for result, numbers := range told {
		spans := ranges(numbers)
		switch result.kind {
		case acknowledged:
			said.Acknowledged = append(said.Acknowledged, spans...)
		case skipped:
			said.Skipped = append(said.Skipped, spans...)
		case retried:
			for _, span := range spans {
				retry := &pb.Retry{Deliveries: span, AfterMs: result.afterMs, Reason: result.text}
				said.Retried = append(said.Retried, retry)
			}
		case stashed:
			for _, span := range spans {
				said.Stashed = append(said.Stashed, &pb.Stash{Deliveries: span, Reason: result.text})
			}
		case failed:
			for _, span := range spans {
				failure := &pb.Failure{Deliveries: span, Code: int32(codes.Unknown), Message: result.text}
				said.Failed = append(said.Failed, failure)
			}
		}
	}
	return said
}

// ranges joins numbers that follow each other: half-open, ascending. It sorts them in place.
func ranges(numbers []uint64) []*pb.Range {
	slices.Sort(numbers)
	var spans []*pb.Range
	for _, number := range numbers {
		if last := len(spans) - 1; last >= 0 && spans[last].End == number {
			spans[last].End++
		} else {
			spans = append(spans, &pb.Range{Start: number, End: number + 1})
		}
	}
	return spans
}
