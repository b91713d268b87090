//! Addresses as people write them: `9495`, `:9495`, `localhost:9495`, `[::1]:9495`, and with
//! `http://` in front.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, bail, ensure};

/// The port of a URL that names none.
const HTTP_PORT: &str = "80";

/// Reads an address where the world connects: a port on its own listens on every address, as the
/// default does.
pub fn public(text: &str) -> Result<SocketAddr, String> {
    read(port_alone(text), Ipv4Addr::UNSPECIFIED, true).map_err(|error| format!("{error:#}"))
}

/// Reads an address where programs of this machine connect: a port on its own listens on loopback.
pub fn local(text: &str) -> Result<SocketAddr, String> {
    read(port_alone(text), Ipv4Addr::LOCALHOST, true).map_err(|error| format!("{error:#}"))
}

/// Strips the colon with which other programs write a port on its own.
fn port_alone(text: &str) -> &str {
    text.strip_prefix(':').unwrap_or(text)
}

/// Reads an address at which other machines find this one: a port on its own does not tell them.
pub fn reachable(text: &str) -> Result<SocketAddr, String> {
    match text.trim_start_matches(':').parse::<u16>() {
        Ok(port) => Err(format!("write the address, too, for example 192.0.2.7:{port}")),
        Err(_) => read(text, Ipv4Addr::LOCALHOST, false).map_err(|error| format!("{error:#}")),
    }
}

/// Reads an address. `alone` is the host for a port on its own; with `any_port`, 0 lets the system
/// choose.
pub fn read(text: &str, alone: Ipv4Addr, any_port: bool) -> anyhow::Result<SocketAddr> {
    let port = |text: &str| -> anyhow::Result<u16> {
        let port: u16 = text
            .parse()
            .with_context(|| format!("'{text}' is not a port: use a number from 1 to 65535"))?;
        ensure!(
            port > 0 || any_port,
            "port 0 cannot be connected to: use a number from 1 to 65535"
        );
        Ok(port)
    };
    let written = text;
    if text.starts_with("https://") {
        bail!(
            "'{text}' asks for TLS, which is not used there: write HOST:PORT of a port without it"
        );
    }
    let is_url = text.starts_with("http://");
    let text = text.strip_prefix("http://").unwrap_or(text);
    let text = if is_url { text.strip_suffix('/').unwrap_or(text) } else { text };
    ensure!(
        !is_url || !text.contains(['/', '?', '#']),
        "'{written}': an address has no path; write HOST:PORT, for example 127.0.0.1:8080"
    );
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(text) {
        return Ok(SocketAddr::from((alone, port(text)?)));
    }
    let split = match text.rsplit_once(':') {
        Some((host, number)) if !host.is_empty() && !text.ends_with(']') => Some((host, number)),
        _ if is_url && !text.is_empty() => Some((text, HTTP_PORT)),
        _ => None,
    };
    let Some((host, number)) = split else {
        bail!("'{written}' is not an address: write HOST:PORT, for example 127.0.0.1:8080");
    };
    let number = port(number)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = (bare, number).to_socket_addrs().with_context(|| {
        format!("the host '{host}' cannot be found; write its address, or check its name")
    })?;
    // `localhost` has addresses of both families, and servers mostly listen on 127.0.0.1.
    let found: Vec<SocketAddr> = found.collect();
    let first = found.iter().find(|one| matches!(one.ip(), IpAddr::V4(_))).or(found.first());
    first.copied().with_context(|| format!("the host '{host}' has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_names_and_urls_are_addresses() {
        for (text, expected) in [
            ("9495", "0.0.0.0:9495"),
            (":9495", "0.0.0.0:9495"),
            ("127.0.0.1:9495", "127.0.0.1:9495"),
            ("localhost:9495", "127.0.0.1:9495"),
            ("[::1]:9495", "[::1]:9495"),
            ("http://127.0.0.1:9495/", "127.0.0.1:9495"),
            ("http://127.0.0.1", "127.0.0.1:80"),
            ("0", "0.0.0.0:0"),
        ] {
            assert_eq!(public(text).map(|one| one.to_string()).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(local("6379").map(|one| one.to_string()).as_deref(), Ok("127.0.0.1:6379"));
        for (text, said) in [
            ("", "write HOST:PORT"),
            ("localhost", "write HOST:PORT"),
            ("70000", "1 to 65535"),
            ("http://a/b", "no path"),
            ("https://a:1", "asks for TLS"),
            ("no host:80", "cannot be found"),
        ] {
            let error = public(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(reachable("8205").unwrap_err().contains("192.0.2.7:8205"));
    }
}
