//! Which addresses a process tree listens on: the kernel lists all listening TCP sockets with
//! their inodes, and the descriptors of each process name the inodes that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Snapshot;

/// 100,000 sockets; a machine with more of them is read in part.
const TABLE_BYTES_MAX: u64 = 16 << 20;
/// Descriptors looked at per process.
const DESCRIPTORS_MAX: usize = 16_384;
/// In the column `st`.
const LISTEN: &str = "0A";

/// All listening TCP sockets of the machine, by inode.
pub struct Listeners {
    sockets: BTreeMap<u64, SocketAddr>,
}

impl Listeners {
    pub fn take() -> io::Result<Listeners> {
        let mut sockets = BTreeMap::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let mut text = String::new();
            match fs::File::open(table) {
                Ok(file) => file.take(TABLE_BYTES_MAX).read_to_string(&mut text)?,
                // No IPv6 on this machine.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            sockets.extend(text.lines().skip(1).filter_map(parse));
        }
        Ok(Listeners { sockets })
    }

    /// Whether anybody at all listens there.
    pub fn any_on(&self, port: u16) -> bool {
        self.sockets.values().any(|address| address.port() == port)
    }

    /// What the tree of `pid` listens on.
    pub fn of(&self, snapshot: &Snapshot, pid: u32) -> BTreeSet<SocketAddr> {
        let mut addresses = BTreeSet::new();
        for pid in snapshot.tree(pid) {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for entry in entries.flatten().take(DESCRIPTORS_MAX) {
                let Ok(link) = fs::read_link(entry.path()) else { continue };
                let inode = link
                    .to_str()
                    .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'))
                    .and_then(|inode| inode.parse().ok());
                if let Some(address) = inode.and_then(|inode: u64| self.sockets.get(&inode)) {
                    addresses.insert(*address);
                }
            }
        }
        addresses
    }
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...`
fn parse(line: &str) -> Option<(u64, SocketAddr)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((inode, SocketAddr::new(address_of(address)?, port)))
}

/// Words of 32 bits in the byte order of the machine.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = text.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (index, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn own_listeners_are_found_and_connections_are_not() {
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        let any = TcpListener::bind("0.0.0.0:0").unwrap();
        let connection = std::net::TcpStream::connect(four.local_addr().unwrap()).unwrap();
        let found = Listeners::take().unwrap().of(&Snapshot::take().unwrap(), std::process::id());
        assert!(found.contains(&four.local_addr().unwrap()), "{found:?}");
        assert!(found.contains(&any.local_addr().unwrap()), "{found:?}");
        assert!(!found.contains(&connection.local_addr().unwrap()), "{found:?}");
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
                    1000        0 4711 1 0000000000000000 100 0 0 10 0";
        let (inode, address) = parse(line).unwrap();
        assert_eq!(inode, 4711);
        // The kernel writes words as this machine reads them.
        let octets = 0x0100_007F_u32.to_ne_bytes();
        assert_eq!(address, SocketAddr::new(Ipv4Addr::from(octets).into(), 8080));
        assert_eq!(parse(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(parse("0: zz:1 x 0A"), None);
        assert_eq!(address_of("00000000000000000000000000000000").unwrap(), Ipv6Addr::UNSPECIFIED);
        assert_eq!(address_of("ä".repeat(4).as_str()), None);
    }
}
