//! The memory that a long-lived process holds only because it was started: the code that read its
//! options and opened its files, and what the kernel mapped beside that, 16 pages for each it was
//! asked for. In a process that serves it was more than half.

use std::fs;
use std::path::Path;

use libc::{MADV_DONTNEED, c_void, madvise};

/// Releases this process's code; what is used comes back at once, from the page cache and for the
/// price of a fault each.
pub fn let_go() {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string(MAPS))
    else {
        return;
    };
    maps.lines().filter_map(|line| code(line, &program)).for_each(let_go_of);
}

const MAPS: &str = "/proc/self/maps";

/// Returns the address and the length of a mapping if `line` of `maps` is code of `program`.
fn code(line: &str, program: &Path) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    // The path comes after offset, device and inode.
    let path = words.nth(3)?;
    if rights != "r-xp" || Path::new(path) != program {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    Some((start, end.checked_sub(start)?))
}

#[expect(unsafe_code, reason = "to tell the kernel something of memory takes it")]
fn let_go_of((start, length): (usize, usize)) {
    // SAFETY: a mapping of this program's file that nobody writes to: at the next access the same
    // bytes are mapped again. Without it the pages stay, which is what a failure means, too.
    unsafe {
        madvise(std::ptr::with_exposed_provenance_mut::<c_void>(start), length, MADV_DONTNEED)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
        55d0c0000000-55d0c0400000 r--p 00000000 fe:00 4711 /usr/bin/cortex
        55d0c0400000-55d0c1000000 r-xp 00400000 fe:00 4711 /usr/bin/cortex
        55d0c1000000-55d0c1100000 rw-p 01000000 fe:00 4711 /usr/bin/cortex
        55d0c2000000-55d0c2100000 rw-p 00000000 00:00 0 [heap]
        7f0000000000-7f0000100000 r-xp 00000000 fe:00 4712 /usr/lib/libc.so.6
        7f0000200000-7f0000300000 r-xp 00000000 00:00 0
        nonsense";

    #[test]
    fn only_the_programs_code_is_found() {
        let found: Vec<_> =
            LINES.lines().filter_map(|line| code(line, Path::new("/usr/bin/cortex"))).collect();
        assert_eq!(found, [(0x55d0_c040_0000, 0xc0_0000)]);
    }

    #[test]
    fn code_that_was_let_go_comes_back_when_it_runs() {
        let_go();
        only_the_programs_code_is_found();
    }
}
