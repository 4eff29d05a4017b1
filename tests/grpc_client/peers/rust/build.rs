//! Generates the services' code: from the description of interop.proto, and for benchmarks by hand.
use prost::Message;
use tonic_prost_build::FileDescriptorSet;
use tonic_prost_build::manual::{Builder, Method, Service};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=interop.binpb");
    let description = FileDescriptorSet::decode(std::fs::read("interop.binpb")?.as_slice())?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_fds(description)?;

    let call = Method::builder()
        .name("call")
        .route_name("Call")
        .input_type("crate::bench::Ignored")
        .output_type("crate::bench::Ignored")
        .codec_path("crate::bench::IgnoringCodec")
        .build();
    let echo = Service::builder()
        .name("Echo")
        .package("switchyard.bench")
        .method(call)
        .build();
    Builder::new().build_client(false).compile(&[echo]);
    Ok(())
}
