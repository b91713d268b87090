//! The addresses that a process tree listens on: the kernel lists all listening sockets with their
//! inodes, and the descriptors of each process name the inodes that it holds. The list comes from
//! the kernel's socket diagnosis, or from the tables below `/proc/net` where that is closed to us.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use model::port::Transport;

use super::{Snapshot, diagnosis};

/// The maximum size of a table in bytes, for 100,000 sockets; a machine with more of them is read
/// in part.
pub(super) const TABLE_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of descriptors that are looked at per process.
pub(super) const DESCRIPTORS_MAX: usize = 16_384;
/// The `st` column of listening sockets: of TCP, and of UDP where it takes datagrams from
/// everybody.
const LISTEN: &str = "0A";
const UNCONNECTED: &str = "07";

/// All listening sockets of the machine for one transport, by inode.
pub struct Listeners {
    sockets: BTreeMap<u64, SocketAddr>,
}

impl Listeners {
    pub fn take(transport: Transport) -> io::Result<Listeners> {
        match diagnosis::listening(transport) {
            Ok(sockets) => Ok(Listeners { sockets }),
            Err(_) => Listeners::read(transport),
        }
    }

    fn read(transport: Transport) -> io::Result<Listeners> {
        let mut sockets = BTreeMap::new();
        let (tables, state) = match transport {
            Transport::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], LISTEN),
            Transport::Udp => (["/proc/net/udp", "/proc/net/udp6"], UNCONNECTED),
        };
        for table in tables {
            let file = match fs::File::open(table) {
                Ok(file) => file,
                // This machine has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // The kernel lists listening sockets first; behind them come all the others, tens of
            // thousands on a machine with many short connections.
            for line in BufReader::new(file.take(TABLE_BYTES_MAX)).lines().skip(1) {
                match parse(&line?, state) {
                    Row::Listens(inode, address) => drop(sockets.insert(inode, address)),
                    Row::Other if transport == Transport::Tcp => break,
                    Row::Other | Row::Unreadable => {}
                }
            }
        }
        Ok(Listeners { sockets })
    }

    /// Whether anybody at all listens there.
    pub fn any_on(&self, port: u16) -> bool {
        self.sockets.values().any(|address| address.port() == port)
    }

    /// Returns what the tree of `pid` listens on.
    pub fn of(&self, snapshot: &Snapshot, pid: u32) -> BTreeSet<SocketAddr> {
        snapshot.tree(pid).into_iter().flat_map(|pid| self.of_process(pid)).collect()
    }

    /// Returns what one process listens on, alone or with others.
    pub fn of_process(&self, pid: u32) -> BTreeSet<SocketAddr> {
        let mut addresses = BTreeSet::new();
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return addresses };
        for entry in entries.flatten().take(DESCRIPTORS_MAX) {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            if let Some(address) = socket_inode(&link).and_then(|one| self.sockets.get(&one)) {
                addresses.insert(*address);
            }
        }
        addresses
    }
}

/// Returns the ports of loopback at which somebody listens, as a table below `/proc/net` says.
pub fn ports_in(table: &str, transport: Transport) -> BTreeSet<u16> {
    let state = if transport == Transport::Tcp { LISTEN } else { UNCONNECTED };
    let rows = table.lines().skip(1).map(|line| parse(line, state));
    let addresses = rows.filter_map(|row| match row {
        Row::Listens(_, address) => Some(address),
        Row::Other | Row::Unreadable => None,
    });
    let reached = addresses.filter(|address| {
        address.ip().is_unspecified() || address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST)
    });
    reached.map(|address| address.port()).collect()
}

/// Returns the inode of a descriptor that is a socket.
pub(super) fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
enum Row {
    Listens(u64, SocketAddr),
    Other,
    Unreadable,
}

/// Parses a row: `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...`
fn parse(line: &str, listening: &str) -> Row {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else {
        return Row::Unreadable;
    };
    if state != listening {
        return Row::Other;
    }
    let address = local.split_once(':').and_then(|(address, port)| {
        Some(SocketAddr::new(address_of(address)?, u16::from_str_radix(port, 16).ok()?))
    });
    match (inode.parse(), address) {
        (Ok(inode), Some(address)) => Row::Listens(inode, address),
        _ => Row::Unreadable,
    }
}

/// Parses an address: words of 32 bits in the byte order of the machine.
pub(super) fn address_of(text: &str) -> Option<IpAddr> {
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
            // Java and others listen on `::ffff:127.0.0.1`, which is 127.0.0.1.
            Some(Ipv6Addr::from(octets).to_canonical())
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
        let found = Listeners::take(Transport::Tcp)
            .unwrap()
            .of(&Snapshot::take().unwrap(), std::process::id());
        assert!(found.contains(&four.local_addr().unwrap()), "{found:?}");
        assert!(found.contains(&any.local_addr().unwrap()), "{found:?}");
        assert!(!found.contains(&connection.local_addr().unwrap()), "{found:?}");
    }

    #[test]
    fn the_diagnosis_and_the_tables_tell_the_same() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0").ok();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = |listeners: &Listeners| listeners.of_process(std::process::id());
        for (transport, address) in [
            (Transport::Tcp, tcp.local_addr().ok()),
            (Transport::Tcp, six.as_ref().and_then(|six| six.local_addr().ok())),
            (Transport::Udp, udp.local_addr().ok()),
        ] {
            let Some(address) = address else { continue };
            let told = Listeners { sockets: diagnosis::listening(transport).unwrap() };
            let read = Listeners::read(transport).unwrap();
            for listeners in [told, read] {
                let found = own(&listeners);
                assert!(found.contains(&address), "{address} among {found:?}");
            }
        }
    }

    #[test]
    fn only_what_loopback_reaches_counts_as_listening_there() {
        let row = |local: &str, state: &str| {
            format!("0: {local} 00000000:0000 {state} 0:0 00:0 0 1000 0 4711 1\n")
        };
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let table = [
            "head\n".to_owned(),
            row(&format!("{}:0050", word([127, 0, 0, 1])), "0A"),
            row(&format!("{}:0051", word([10, 0, 0, 1])), "0A"),
            row(&format!("{}:0052", word([0; 4])), "0A"),
            row(&format!("{}:0053", "0".repeat(32)), "0A"),
            row(&format!("{}:0054", word([127, 0, 0, 1])), "01"),
        ];
        assert_eq!(ports_in(&table.concat(), Transport::Tcp), [0x50, 0x52, 0x53].into());
        assert!(ports_in("", Transport::Udp).is_empty());
    }

    #[test]
    fn datagrams_from_everybody_are_listened_for() {
        let open = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(open.local_addr().unwrap()).unwrap();
        let listeners = Listeners::take(Transport::Udp).unwrap();
        let found = listeners.of(&Snapshot::take().unwrap(), std::process::id());
        assert!(found.contains(&open.local_addr().unwrap()), "{found:?}");
        assert!(!found.contains(&client.local_addr().unwrap()), "{found:?}");
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
                    1000        0 4711 1 0000000000000000 100 0 0 10 0";
        // The kernel writes words as this machine reads them.
        let octets = 0x0100_007F_u32.to_ne_bytes();
        let address = SocketAddr::new(Ipv4Addr::from(octets).into(), 8080);
        assert_eq!(parse(line, LISTEN), Row::Listens(4711, address));
        assert_eq!(parse(&line.replace(" 0A ", " 01 "), LISTEN), Row::Other);
        assert_eq!(parse(&line.replace("1F90", "zz"), LISTEN), Row::Unreadable);
        assert_eq!(parse("0: zz:1 x 0A", LISTEN), Row::Unreadable);
        assert_eq!(address_of("00000000000000000000000000000000").unwrap(), Ipv6Addr::UNSPECIFIED);
        let mapped = format!("{}FFFF0000{}", "0".repeat(16), "0100007F");
        if cfg!(target_endian = "little") {
            assert_eq!(address_of(&mapped).unwrap(), Ipv4Addr::LOCALHOST);
        }
        assert_eq!(address_of("ä".repeat(4).as_str()), None);
    }
}
