//! Conditions of requests for files.

use super::*;
use crate::files::found::Content;

fn wanted(fields: &str) -> DueAnswer {
    let head = format!("GET / HTTP/1.1\r\n{fields}\r\n");
    let (modified, changed_at) = modified(Duration::from_millis(1_700_000_000_500));
    assert_eq!(modified, "Tue, 14 Nov 2023 22:13:20 GMT");
    let found = Found { etag: "\"a-1\"".into(), modified, changed_at, ..Found::missing() };
    assert!(matches!(found.content, Content::Missing));
    Conditions::read(head.as_bytes()).wanted(&found)
}

#[test]
fn conditions_are_weighed_in_their_order() {
    const ALL: DueAnswer = DueAnswer::Content { ranged: true };
    const WHOLE: DueAnswer = DueAnswer::Content { ranged: false };
    let (before, same, after) = (
        "Tue, 14 Nov 2023 22:13:19 GMT",
        "Tue, 14 Nov 2023 22:13:20 GMT",
        "Wed, 15 Nov 2023 22:13:20 GMT",
    );
    for (fields, expected) in [
        (String::new(), ALL),
        ("If-None-Match: \"a-1\"\r\n".into(), DueAnswer::NotModified),
        ("If-None-Match: \"b\", W/\"a-1\"\r\n".into(), DueAnswer::NotModified),
        ("If-None-Match: \"b\"\r\nIf-None-Match: *\r\n".into(), DueAnswer::NotModified),
        ("If-None-Match: \"b\"\r\n".into(), ALL),
        (format!("If-Modified-Since: {same}\r\n"), DueAnswer::NotModified),
        (format!("If-Modified-Since: {after}\r\n"), DueAnswer::NotModified),
        (format!("If-Modified-Since: {before}\r\n"), ALL),
        ("If-Modified-Since: yesterday\r\n".into(), ALL),
        (format!("If-None-Match: \"b\"\r\nIf-Modified-Since: {same}\r\n"), ALL),
        ("If-Match: \"a-1\"\r\n".into(), ALL),
        ("If-Match: W/\"a-1\"\r\n".into(), DueAnswer::PreconditionFailed),
        ("If-Match: \"b\"\r\nIf-None-Match: *\r\n".into(), DueAnswer::PreconditionFailed),
        (format!("If-Unmodified-Since: {before}\r\n"), DueAnswer::PreconditionFailed),
        (format!("If-Unmodified-Since: {same}\r\n"), ALL),
        ("Range: bytes=0-1\r\nIf-Range: \"a-1\"\r\n".into(), ALL),
        ("Range: bytes=0-1\r\nIf-Range: W/\"a-1\"\r\n".into(), WHOLE),
        (format!("If-Range: {same}\r\n"), ALL),
        (format!("If-Range: {after}\r\n"), WHOLE),
    ] {
        assert_eq!(wanted(&fields), expected, "{fields}");
    }
}
