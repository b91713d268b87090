//! The first bytes of a connection: no bytes panic the reader of the PROXY protocol or the code
//! that tells clients apart, what they decide does not depend on how the bytes are cut, and a
//! header that is read means the same when it is written again.

use std::net::SocketAddr;

use router_core::detect::{self, Sort};
use router_core::proxy_protocol::{self, Addresses, HeaderVersion};

pub fn check(bytes: &[u8]) {
    header(bytes);
    spoken(bytes);
}

fn header(bytes: &[u8]) {
    let whole = proxy_protocol::parse(bytes);
    for end in 0..bytes.len() {
        match proxy_protocol::parse(&bytes[..end]) {
            Ok(None) => {}
            Ok(Some(header)) => {
                assert!(header.length <= end);
                assert_eq!(whole, Ok(Some(header)), "the first {end} bytes decided otherwise");
            }
            Err(_) => assert!(whole.is_err(), "the first {end} bytes were refused"),
        }
    }
    let Ok(Some(header)) = whole else { return };
    assert!(header.length <= bytes.len());
    let Some(addresses) = header.addresses else { return };
    let canonical = |one: SocketAddr| SocketAddr::new(one.ip().to_canonical(), one.port());
    let client = canonical(addresses.client);
    let destination = canonical(addresses.destination);
    for version in [HeaderVersion::V1, HeaderVersion::V2] {
        let mut out = Vec::new();
        proxy_protocol::write(version, addresses, &mut out);
        let again = proxy_protocol::parse(&out).expect("it was written here");
        let again = again.expect("it is whole");
        assert_eq!(again.length, out.len());
        let known = client.is_ipv4() == destination.is_ipv4();
        assert_eq!(again.addresses, known.then_some(Addresses { client, destination }));
    }
}

fn spoken(bytes: &[u8]) {
    let mut decided = None;
    for end in 0..=bytes.len() {
        let now = detect::detect(&bytes[..end]);
        if decided.is_some() {
            assert_eq!(now, decided, "{end} bytes took back what fewer decided");
        }
        decided = now;
    }
    assert!(decided.is_some() || bytes.len() < detect::BYTES_MAX);
    let Some(spoken) = decided else { return };
    let sorts = [Sort::TlsNamed("a.b".into()), Sort::Http, Sort::Tls, Sort::Other];
    assert!(detect::choose(&sorts, &spoken).is_some(), "`other` takes everybody");
}
