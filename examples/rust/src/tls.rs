//! TLS to a daemon's port, with the files that the environment names.

use std::{env, fs};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Returns where a channel leads: in plain text to a socket, and to a port without STATEWARD_TLS_CA.
pub fn endpoint(target: &str) -> Result<Endpoint, tonic::transport::Error> {
    if target.starts_with("unix:") {
        return Endpoint::from_shared(target.to_owned());
    }
    // tonic wants a scheme before host:port.
    let Some(ca) = read("STATEWARD_TLS_CA") else { return Endpoint::from_shared(format!("http://{target}")) };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    if let (Some(cert), Some(key)) = (read("STATEWARD_TLS_CERT"), read("STATEWARD_TLS_KEY")) {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    Endpoint::from_shared(format!("https://{target}"))?.tls_config(tls)
}

/// Reads the file that a variable names, if it names one.
fn read(variable: &str) -> Option<Vec<u8>> {
    let path = env::var(variable).ok().filter(|path| !path.is_empty())?;
    Some(fs::read(&path).unwrap_or_else(|error| {
        eprintln!("{variable}: cannot read {path}: {error}");
        std::process::exit(1)
    }))
}
