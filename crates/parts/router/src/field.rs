//! The search for one field in a head that is already written.

/// Returns a field of a head of HTTP/1.1, without the spaces around it.
pub fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut lines = head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::trim_ascii_end);
    let found = lines.by_ref().take_while(|line| !line.is_empty()).find_map(|line| {
        let rest = line.get(name.len()..)?.strip_prefix(b":")?;
        line[..name.len()].eq_ignore_ascii_case(name.as_bytes()).then_some(rest)
    });
    Some(found?.trim_ascii())
}
