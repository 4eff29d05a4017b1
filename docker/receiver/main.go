// A receiver of Switchyard's messages in Go, to be copied: it serves both contracts, one call a message and
// streams of batches, the health service, and ends gracefully. What it does with a message is in handler.go.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	pb "switchyard.example/receiver/gen"
)

const (
	maxMessageBytes  = 16 << 20         // Kafka's usual limits are below; gRPC's own 4 MiB is not
	maxMetadataBytes = 2 << 20          // of unary calls: key and headers
	minPingInterval  = 30 * time.Second // gRPC's own five minutes would end connections with long calls
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address; port 0: a free one")
	group := flag.String("group", "billing", "consumer group")
	topic := flag.String("topic", "orders", "topic")
	window := flag.Uint64("window", 1000, "deliveries that a stream may have in flight")
	grace := flag.Duration("grace", 10*time.Second, "how long messages in progress may take at the end")
	age := flag.Duration("max-connection-age", 0, "connections are ended gracefully after it; 0: never")
	ageGrace := flag.Duration("max-connection-age-grace", 0, "then calls in progress may take so long; 0: for ever")
	journal := flag.String("journal", os.DevNull, "file for a line a delivery")
	flag.Parse()

	file, err := os.OpenFile(*journal, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(newRawCodec()),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(maxMetadataBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *age, MaxConnectionAgeGrace: *ageGrace}),
	)
	receiver := &receiver{
		group: *group, topic: *topic, window: *window,
		handle: recovered((&demo{journal: file, seen: map[string]int{}}).handle), stopping: make(chan struct{}),
	}
	server.RegisterService(receiver.unaryService(), receiver)
	pb.RegisterReceiverServer(server, receiver)
	healthy := health.NewServer() // "", the whole server, is SERVING from the start
	healthy.SetServingStatus(pb.Receiver_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		healthy.Shutdown()       // NOT_SERVING
		close(receiver.stopping) // streams answer what they have, then end
		timer := time.AfterFunc(*grace, server.Stop)
		defer timer.Stop()
		server.GracefulStop() // calls in progress end, new ones are refused
	}()
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"address": listener.Addr().String(), "pid": os.Getpid()})
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
	<-ended
}

// receiver takes the messages of one group and topic, over both contracts.
type receiver struct {
	pb.UnimplementedReceiverServer
	group, topic string
	window       uint64
	handle       Handler
	stopping     chan struct{} // closed when it takes no new messages
}
