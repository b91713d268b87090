//! Descriptors that came along with a process although nobody meant it to have them, such as a file
//! that a shell held open when it started the node.

use std::fs;

/// The first descriptor behind stdin, stdout and stderr.
const FIRST: i32 = 3;

/// Closes them. To be called when a process begins, before it has opened anything itself.
#[expect(unsafe_code, reason = "nothing in this process owns them")]
pub fn close() {
    let (first, last) = (libc::c_long::from(FIRST), libc::c_long::from(u32::MAX));
    // SAFETY: whoever calls this has opened nothing, so that nothing here relies on them.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Kernels before 5.9 do not have that call.
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|number| *number >= FIRST).collect::<Vec<_>>() {
        // SAFETY: as above; that of the directory is closed already, and then nothing happens.
        unsafe { libc::close(number) };
    }
}
