//! The service for benchmarks: it answers every message with an empty one, and reads no message.
use bytes::Buf;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status};

tonic::include_proto!("switchyard.bench.Echo");

/// A message whose bytes nobody reads; as an answer it is empty.
pub struct Ignored;

#[derive(Default)]
pub struct IgnoringCodec;

impl Codec for IgnoringCodec {
    type Encode = Ignored;
    type Decode = Ignored;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for IgnoringCodec {
    type Item = Ignored;
    type Error = Status;

    fn encode(&mut self, _: Ignored, _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for IgnoringCodec {
    type Item = Ignored;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Ignored>, Status> {
        source.advance(source.remaining());
        Ok(Some(Ignored))
    }
}

pub struct Bench;

#[tonic::async_trait]
impl echo_server::Echo for Bench {
    async fn call(&self, _: Request<Ignored>) -> Result<Response<Ignored>, Status> {
        Ok(Response::new(Ignored))
    }
}
