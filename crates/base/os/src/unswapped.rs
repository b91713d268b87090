//! Memory that is never written to swap space.

use std::io;

use libc::{c_void, mlock};
use rustix::param::page_size;

/// Keeps the pages of these bytes in memory, and so out of swap space. They stay so after the bytes
/// were freed: something else on the same page may need it, too. An ordinary user may lock at least
/// 64 KiB (`ulimit -l`); above that the kernel refuses.
pub fn keep_unswapped(bytes: &[u8]) -> io::Result<()> {
    let (address, page) = (bytes.as_ptr().addr(), page_size());
    let start = address - address % page;
    let length = address + bytes.len() - start;
    lock(start, length)
}

#[expect(unsafe_code, reason = "to tell the kernel something of memory takes it")]
fn lock(start: usize, length: usize) -> io::Result<()> {
    // SAFETY: what is mapped there stays as it is, and where nothing is, the call fails.
    let result = unsafe { mlock(std::ptr::with_exposed_provenance::<c_void>(start), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked_kilobytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn the_kernel_counts_the_pages_of_bytes_that_lie_on_two() {
        let page = page_size();
        let bytes = vec![0_u8; 4 * page];
        let first = page - bytes.as_ptr().addr() % page;
        let before = locked_kilobytes();
        keep_unswapped(&bytes[first + page - 16..first + page + 16]).unwrap();
        assert_eq!(locked_kilobytes() - before, 2 * page as u64 / 1024);
    }
}
