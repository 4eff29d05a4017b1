//! The interoperability service. tonic compresses all responses of a stream or none, so only `UnaryCall` can
//! be compressed here.
use std::pin::Pin;
use std::time::Duration;

use axum::extract::Request as HttpRequest;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response as HttpResponse;
use http_body_util::BodyExt;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

pub mod proto {
    tonic::include_proto!("grpc.testing");
}
use proto::detailed_status::Detail;
use proto::{
    DetailedStatus, EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse,
    StreamingOutputCallRequest, StreamingOutputCallResponse,
};

const INITIAL: HeaderName = HeaderName::from_static("x-grpc-test-echo-initial");
const TRAILING: HeaderName = HeaderName::from_static("x-grpc-test-echo-trailing-bin");
const BIG_TRAILER: &str = "x-test-big-trailer";
const WAITING_RESPONSES: usize = 1;

type Responses = Pin<Box<dyn Stream<Item = Result<StreamingOutputCallResponse, Status>> + Send>>;
type Sender = mpsc::Sender<Result<StreamingOutputCallResponse, Status>>;

pub struct TestService;

#[tonic::async_trait]
impl proto::test_service_server::TestService for TestService {
    async fn empty_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        sleep(Duration::from_millis(number(&metadata, "x-test-sleep-ms"))).await;
        check(&metadata, request.response_status)?;
        let payload = Some(zeros(request.response_size));
        let mut response = Response::new(SimpleResponse { payload });
        if !request
            .response_compressed
            .is_some_and(|wanted| wanted.value)
        {
            response.disable_compression();
        }
        Ok(response)
    }

    type StreamingOutputCallStream = Responses;

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Responses>, Status> {
        let (metadata, _, request) = request.into_parts();
        Ok(answered(metadata, tokio_stream::once(Ok(request))))
    }

    type FullDuplexCallStream = Responses;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let (metadata, _, requests) = request.into_parts();
        Ok(answered(metadata, requests))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// Answers requests one after the other.
fn answered<R>(metadata: MetadataMap, requests: R) -> Response<Responses>
where
    R: Stream<Item = Result<StreamingOutputCallRequest, Status>> + Send + Unpin + 'static,
{
    let (sender, responses) = mpsc::channel(WAITING_RESPONSES);
    tokio::spawn(async move {
        if let Err(status) = answer(&metadata, requests, &sender).await {
            let _ = sender.send(Err(status)).await; // an error: the call is over
        }
    });
    Response::new(Box::pin(ReceiverStream::new(responses)))
}

async fn answer<R>(metadata: &MetadataMap, mut requests: R, sender: &Sender) -> Result<(), Status>
where
    R: Stream<Item = Result<StreamingOutputCallRequest, Status>> + Unpin,
{
    while let Some(request) = requests.next().await {
        let request = request?;
        for parameters in request.response_parameters {
            sleep(Duration::from_micros(parameters.interval_us as u64)).await;
            let payload = Some(zeros(parameters.size));
            let response = StreamingOutputCallResponse { payload };
            if sender.send(Ok(response)).await.is_err() {
                return Ok(()); // the call is over
            }
        }
        check(metadata, request.response_status)?;
    }
    Ok(())
}

/// Returns the error that a request asks for.
fn check(metadata: &MetadataMap, wanted: Option<EchoStatus>) -> Result<(), Status> {
    let Some(wanted) = wanted.filter(|wanted| wanted.code != 0) else {
        return Ok(());
    };
    let code = Code::from_i32(wanted.code);
    if number(metadata, "x-test-details") == 0 {
        return Err(Status::new(code, wanted.message));
    }
    let detail = Detail {
        type_url: "type.googleapis.com/grpc.testing.EchoStatus".into(),
        value: wanted.encode_to_vec(),
    };
    let details = DetailedStatus {
        code: wanted.code,
        message: wanted.message.clone(),
        details: vec![detail],
    };
    let bytes = details.encode_to_vec().into();
    Err(Status::with_details(code, wanted.message, bytes))
}

/// The number in the call's metadata, 0 without one.
fn number(metadata: &MetadataMap, key: &str) -> u64 {
    let text = metadata.get(key).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn zeros(size: i32) -> Payload {
    let body = vec![0; size as usize];
    Payload { body }
}

/// Adds the metadata that a call asks for. tonic itself sends none after a successful unary call.
pub async fn with_metadata(mut request: HttpRequest, next: Next) -> HttpResponse {
    let path = request.uri().path();
    if path.ends_with("/EmptyCall") {
        return next.run(request).await;
    }
    if !path.ends_with("/UnaryCall") {
        request.headers_mut().remove("grpc-accept-encoding"); // so tonic does not compress the stream
    }
    let headers = request.headers();
    let initial = headers.get(INITIAL).cloned();
    let mut trailers = HeaderMap::new();
    if let Some(value) = headers.get(TRAILING) {
        trailers.insert(TRAILING, value.clone());
    }
    let letters = headers
        .get(BIG_TRAILER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(letters) = letters.map(|letters| "x".repeat(letters)) {
        let value = HeaderValue::try_from(letters).expect("letters are valid");
        trailers.insert("x-test-big", value);
    }
    let (mut parts, body) = next.run(request).await.into_parts();
    if initial.is_none() && trailers.is_empty() {
        return HttpResponse::from_parts(parts, body);
    }
    // A call that failed before its first response has its status among the headers.
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
        if let Some(value) = parts.headers.remove(name) {
            trailers.insert(HeaderName::from_static(name), value);
        }
    }
    if let Some(value) = initial {
        parts.headers.insert(INITIAL, value);
    }
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    HttpResponse::from_parts(parts, axum::body::Body::new(body))
}
