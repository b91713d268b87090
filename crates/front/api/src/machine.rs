//! What the operating system knows of this machine and its users.

use std::fs;

/// Returns the user's name from `/etc/passwd`, or the number if it has none.
pub fn user_name(uid: u32) -> String {
    fs::read_to_string("/etc/passwd")
        .ok()
        .and_then(|text| name_in(&text, uid))
        .unwrap_or_else(|| format!("uid {uid}"))
}

fn name_in(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == uid).then(|| name.to_string())
    })
}

/// Returns the resident memory of this process.
pub fn own_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named() {
        let passwd = "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_in(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_in(passwd, 7), None);
    }

    #[test]
    fn own_memory_is_known() {
        assert!(own_memory_bytes().unwrap() > 100_000);
    }
}
