// Generates the messages and stubs of the contract. protoc is the one on the path, or the one that PROTOC names.
fn main() -> std::io::Result<()> {
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
    let services = ["blob", "checkpoint", "effect", "lease", "record", "signal", "thread", "writer"];
    let files = services.map(|name| format!("{proto}/stateward/v1/{name}_service.proto"));
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".google.rpc", "::tonic_types::pb") // of the crate that reads errors, too
        .compile_protos(&files, &[proto.to_string()])
}
