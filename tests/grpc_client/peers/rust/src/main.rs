//! A gRPC server in Rust for the tests of our client. The options are those of all peers, see ../__init__.py.
//!
//! With `--max-connection-age-grace-ms`, tonic cuts a connection after both times, and sends no GOAWAY.
use std::collections::HashMap;
use std::io::{Read, Write};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use service::proto::test_service_server::TestServiceServer;

mod bench;
mod service;

type Error = Box<dyn std::error::Error>;
type Options = HashMap<String, String>;

const UNTIL_STDIN_ENDS: &str = "--until-stdin-ends";
const NAMES: [&str; 9] = [
    "--port",
    "--unix",
    "--tls-cert",
    "--tls-key",
    "--client-ca",
    "--max-concurrent-streams",
    "--max-connection-age-ms",
    "--max-connection-age-grace-ms",
    "--max-message",
];
const DEFAULT_MAX_MESSAGE: usize = 4 << 20;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let options = options(std::env::args().skip(1))?;
    let max_message = number(&options, "--max-message")?.unwrap_or(DEFAULT_MAX_MESSAGE);
    let test_service = TestServiceServer::new(service::TestService)
        .max_decoding_message_size(max_message)
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip);
    let bench =
        bench::echo_server::EchoServer::new(bench::Bench).max_decoding_message_size(max_message);
    let router = Routes::new(test_service)
        .into_axum_router()
        .layer(axum::middleware::from_fn(service::with_metadata));
    let routes = Routes::from(router).add_service(bench).prepare();
    let server = server(&options)?.add_routes(routes);

    let mut terminated = signal(SignalKind::terminate())?;
    let stop = async move {
        terminated.recv().await;
    };
    if options.contains_key(UNTIL_STDIN_ENDS) {
        std::thread::spawn(end_with_stdin);
    }
    if let Some(path) = options.get("--unix") {
        let incoming = UnixListenerStream::new(UnixListener::bind(path)?);
        say(&format!("listening on {path}"))?;
        server.serve_with_incoming_shutdown(incoming, stop).await?;
    } else {
        let port: u16 = number(&options, "--port")?.unwrap_or(0);
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        say(&format!("listening on {port}"))?;
        server.serve_with_incoming_shutdown(incoming, stop).await?;
    }
    Ok(())
}

fn server(options: &Options) -> Result<Server, Error> {
    let mut server =
        Server::builder().max_concurrent_streams(number(options, "--max-concurrent-streams")?);
    if let Some(age_ms) = number(options, "--max-connection-age-ms")? {
        server = server.max_connection_age(Duration::from_millis(age_ms));
    }
    if let Some(grace_ms) = number(options, "--max-connection-age-grace-ms")? {
        server = server.max_connection_age_grace(Duration::from_millis(grace_ms));
    }
    if let (Some(certificate), Some(key)) = (options.get("--tls-cert"), options.get("--tls-key")) {
        let identity = Identity::from_pem(std::fs::read(certificate)?, std::fs::read(key)?);
        let mut tls = ServerTlsConfig::new().identity(identity);
        if let Some(authority) = options.get("--client-ca") {
            tls = tls.client_ca_root(Certificate::from_pem(std::fs::read(authority)?));
        }
        server = server.tls_config(tls)?;
    }
    Ok(server)
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, Error> {
    let mut found = Options::new();
    while let Some(name) = arguments.next() {
        if name == UNTIL_STDIN_ENDS {
            found.insert(name, String::new());
        } else if NAMES.contains(&name.as_str()) {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{name} lacks its value"))?;
            found.insert(name, value);
        } else {
            return Err(format!("{name} is no option; options: {}", NAMES.join(" ")).into());
        }
    }
    Ok(found)
}

fn number<T: FromStr<Err: std::error::Error + 'static>>(
    options: &Options,
    name: &str,
) -> Result<Option<T>, Error> {
    Ok(options.get(name).map(|text| text.parse()).transpose()?)
}

fn say(line: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    output.flush()
}

fn end_with_stdin() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}
