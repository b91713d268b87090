//! Values of options as people write them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::address;

/// The longest time limit in seconds, a day: a user who wants a longer one wants no limit, and
/// there is none.
const SECONDS_MAX: f64 = 86_400.0;
const SECONDS_MIN: f64 = 0.05;

/// Reads a host and a port, or a port on its own, which is one of this machine.
pub fn to_address(text: &str, option: &str, any_port: bool) -> anyhow::Result<SocketAddr> {
    address::read(text, Ipv4Addr::LOCALHOST, any_port)
        .map_err(|error| anyhow::anyhow!("{option}: {error:#}"))
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
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
            ("127.0.0.1:x", "'x' is not a port"),
            ("0", "port 0 cannot be connected to"),
            ("no host:80", "cannot be found"),
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
