// A gRPC server in Go for the tests of our client. The options are those of all peers, see ../__init__.py, and
// those of the benches, see bench.go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // registers itself
	"google.golang.org/grpc/keepalive"

	"switchyard.example/peer/pb"
)

var (
	port       = flag.Int("port", 0, "port on 127.0.0.1; 0: a free one")
	unixPath   = flag.String("unix", "", "path of a Unix socket, instead of a port")
	certFile   = flag.String("tls-cert", "", "PEM file of the server's certificate")
	keyFile    = flag.String("tls-key", "", "PEM file of the server's key")
	clientCA   = flag.String("client-ca", "", "PEM file; clients must show a certificate of this authority")
	maxStreams = flag.Uint("max-concurrent-streams", 0, "calls of a connection at once; 0: no limit")
	ageMs      = flag.Int64("max-connection-age-ms", 0, "then a connection gets GOAWAY; 0: never")
	ageGraceMs = flag.Int64("max-connection-age-grace-ms", 0, "then its calls are canceled; 0: never")
	maxMessage = flag.Int("max-message", 4<<20, "bytes of the largest request")
	untilStdin = flag.Bool("until-stdin-ends", false, "end with the standard input")
)

func main() {
	flag.Parse()
	options, err := serverOptions()
	if err != nil {
		log.Fatal(err)
	}
	if *benchAtOnce > 0 {
		slots = makeSlots(*benchAtOnce)
	}
	if *benchLatencies != "" {
		if latencies, err = openLatencies(*benchLatencies); err != nil {
			log.Fatal(err)
		}
	}
	network, address := "tcp", fmt.Sprintf("127.0.0.1:%d", *port)
	if *unixPath != "" {
		network, address = "unix", *unixPath
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(options...)
	pb.RegisterTestServiceServer(server, service{})
	server.RegisterService(&benchService, struct{}{})

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		server.GracefulStop() // Serve returns after the calls in progress
	}()
	if *untilStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		fmt.Printf("listening on %d\n", tcp.Port)
	} else {
		fmt.Printf("listening on %s\n", *unixPath)
	}
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

func serverOptions() ([]grpc.ServerOption, error) {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(*maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      time.Duration(*ageMs) * time.Millisecond,
			MaxConnectionAgeGrace: time.Duration(*ageGraceMs) * time.Millisecond,
		}),
	}
	if *maxStreams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(uint32(*maxStreams)))
	}
	if *certFile == "" {
		return options, nil
	}
	certificate, err := tls.LoadX509KeyPair(*certFile, *keyFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if *clientCA != "" {
		pem, err := os.ReadFile(*clientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--client-ca %s has no certificate in PEM", *clientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return append(options, grpc.Creds(credentials.NewTLS(config))), nil
}
