//! One process as `/proc/PID` shows it. Knows the kernel's formats and nothing of applications;
//! used by the shim (so: std only) and by snapshots.

use std::io;

use model::instance::ProcessIdentity;

/// The fields of `/proc/PID/stat` that anybody here asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    pub parent: u32,
    pub session: u32,
    pub state: u8,
    pub start_ticks: u64,
    pub resident_pages: u64,
    /// The processor time that it has used, in clock ticks.
    pub used_ticks: u64,
}

impl Stat {
    /// Whether it has exited already, and only its entry is left until its parent reaps it.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Returns the fields; `None` when there is no such process (any more).
pub fn stat(pid: u32) -> Option<Stat> {
    parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the fields. The name (field 2) may hold blanks and parentheses: fields are counted from
/// the last one.
fn parse(pid: u32, line: &[u8]) -> Option<Stat> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let user_ticks: u64 = fields.nth(7)?.parse().ok()?;
    let system_ticks: u64 = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(6)?.parse().ok()?;
    let resident_pages = fields.nth(1)?.parse().ok()?;
    let used_ticks = user_ticks.saturating_add(system_ticks);
    Some(Stat { pid, parent, session, state, start_ticks, resident_pages, used_ticks })
}

/// Returns every process, in the order of the kernel: ascending.
pub fn pids() -> io::Result<impl Iterator<Item = u32>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// Returns the boot id, which is another one after each boot.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

pub fn identity(pid: u32) -> io::Result<ProcessIdentity> {
    let stat = stat(pid).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("process {pid} does not exist"))
    })?;
    Ok(ProcessIdentity { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
}

/// Whether exactly this process still runs, and not another one under its number.
pub fn is_alive(process: &ProcessIdentity) -> bool {
    stat(process.pid).is_some_and(|stat| !stat.is_dead() && stat.start_ticks == process.start_ticks)
        && boot_id().is_ok_and(|boot_id| boot_id == process.boot_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_fields() {
        let line = b"42 (a) b (c)) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 25 18";
        let stat = parse(42, line).unwrap();
        assert_eq!((stat.parent, stat.session, stat.state), (7, 41, b'S'));
        assert_eq!((stat.start_ticks, stat.resident_pages), (99, 25));
        assert_eq!(stat.used_ticks, 5 + 6);
    }

    #[test]
    fn torn_lines_are_no_process() {
        for line in [&b""[..], b"42", b"42 (x", b"42 (x) S 7", b"42 (x) S x 1 1", b"\xff)\xff"] {
            assert_eq!(parse(42, line), None);
        }
    }

    #[test]
    fn an_identity_outlives_neither_its_start_time_nor_a_boot() {
        let own = identity(std::process::id()).unwrap();
        assert!(is_alive(&own));
        let later = ProcessIdentity { start_ticks: own.start_ticks + 1, ..own.clone() };
        assert!(!is_alive(&later));
        assert!(!is_alive(&ProcessIdentity { boot_id: "another".into(), ..own }));
    }
}
