//! Values of options as people write them.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// A day: whoever wants longer wants no limit, and there is none.
const SECONDS_MAX: f64 = 86_400.0;
const SECONDS_MIN: f64 = 0.05;

/// A host and a port, or a port of this machine alone.
pub fn to_address(text: &str, option: &str, any_port: bool) -> anyhow::Result<SocketAddr> {
    let port = |text: &str| -> anyhow::Result<u16> {
        let port: u16 = text
            .parse()
            .with_context(|| format!("{option}: '{text}' is no port; ports are 1 to 65535"))?;
        ensure!(port > 0 || any_port, "{option}: 0 is no port to be found at");
        Ok(port)
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port(text)?)));
    }
    let Some((host, number)) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
        bail!("{option}: '{text}' is no address; write HOST:PORT, for example 127.0.0.1:8080");
    };
    let number = port(number)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = (bare, number).to_socket_addrs();
    let mut found = found.with_context(|| {
        format!("{option}: the host '{host}' is not known; write its address, or look at its name")
    })?;
    found.next().with_context(|| format!("{option}: the host '{host}' has no address"))
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&number) {
        return Err(format!("it takes {SECONDS_MIN} to {SECONDS_MAX} seconds"));
    }
    Ok(Duration::from_secs_f64(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |text: &str| to_address(text, "--to", false);
        for (text, address) in [
            ("3001", "127.0.0.1:3001"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:80", "127.0.0.1:80"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(read(text).unwrap().port(), address.port(), "{text}");
            assert!(text == "localhost:80" || read(text).unwrap() == address, "{text}");
        }
        for (text, needle) in [
            ("", "write HOST:PORT"),
            ("host", "write HOST:PORT"),
            (":80", "write HOST:PORT"),
            ("70000", "1 to 65535"),
            ("127.0.0.1:x", "'x' is no port"),
            ("0", "0 is no port"),
            ("no host:80", "is not known"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(needle) && error.starts_with("--to"), "{error}");
        }
        assert_eq!(to_address("0", "--listen", true).unwrap().port(), 0);
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "x", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
