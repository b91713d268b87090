//! The file that a request path means, and what kind of file it is. Knows no disk: whether the file
//! is there, and whether a link leads out, is for the caller. Driven by the router's static files.

pub mod coding;
pub mod fingerprint;

use model::release::StaticMount;

/// Bytes of a path, more than any file system takes.
const PATH_LENGTH_MAX: usize = 4096;

/// The file that a directory answers with.
pub const INDEX: &str = "index.html";

/// Returns the mounts that contain the request path, longest prefix first, each with the decoded
/// path below it: no `..`, no empty tokens, so that joining it stays below the directory. What is
/// kept back is for the caller. `None` if the path is malformed or tries to leave.
pub fn resolve<'a>(
    mounts: &'a [StaticMount],
    target: &[u8],
) -> Option<Vec<(&'a StaticMount, String)>> {
    let path = target.split(|byte| matches!(byte, b'?' | b'#')).next()?;
    let decoded = decode(path)?;
    let mut found: Vec<(&StaticMount, String)> = Vec::new();
    for mount in mounts {
        if let Some(rest) = decoded.strip_prefix(mount.prefix.as_str()) {
            found.push((mount, relative(rest)?));
        }
    }
    found.sort_by_key(|(mount, _)| std::cmp::Reverse(mount.prefix.len()));
    Some(found)
}

fn decode(path: &[u8]) -> Option<String> {
    if path.len() > PATH_LENGTH_MAX || path.first() != Some(&b'/') {
        return None;
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.iter();
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => {
                let high = char::from(*rest.next()?).to_digit(16)?;
                let low = char::from(*rest.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            byte => *byte,
        });
    }
    let text = String::from_utf8(decoded).ok()?;
    (!text.contains(|c: char| c.is_control() || c == '\\')).then_some(text)
}

/// Decodes the rest of a path; one that ends with `/` keeps it.
fn relative(rest: &str) -> Option<String> {
    let mut safe = String::with_capacity(rest.len());
    for token in rest.split('/').filter(|token| !token.is_empty() && *token != ".") {
        if token == ".." {
            return None;
        }
        if !safe.is_empty() {
            safe.push('/');
        }
        safe.push_str(token);
    }
    if rest.ends_with('/') && !safe.is_empty() {
        safe.push('/');
    }
    Some(safe)
}

/// Returns whether the client wants a page, as far as that can be told: then a single-page
/// application has its own for it. A script or a picture that is not there is simply not there.
pub fn wants_page(path: &str, accept: Option<&str>) -> bool {
    !has_extension(path) || accept.is_some_and(takes_html)
}

/// Returns whether the path's last name has an extension.
pub fn has_extension(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

/// Returns whether HTML is asked for by name; a client that takes anything may want a script.
fn takes_html(accept: &str) -> bool {
    let kinds = accept.split(',').filter_map(|kind| kind.split(';').next());
    kinds.map(str::trim).any(|kind| {
        kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
    })
}

/// Returns the type by the name's end; what is unknown is never interpreted by a browser.
pub fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit('/').next().and_then(|file| file.rsplit_once('.'));
    let extension = extension.map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref().unwrap_or_default() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "xml" => "application/xml",
        "csv" => "text/csv; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        _ => "application/octet-stream",
    }
}

/// One range of `Range: bytes=…`, as first byte and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// There is no range that is understood: the whole file is sent.
    Whole,
    Part {
        start: u64,
        length: u64,
    },
    /// The range is past the end.
    Unsatisfiable,
}

pub fn range(header: Option<&[u8]>, size: u64) -> ByteRange {
    let text = header.and_then(|header| std::str::from_utf8(header).ok());
    let Some(spec) = text.and_then(|text| text.trim().strip_prefix("bytes=")) else {
        return ByteRange::Whole;
    };
    let Some((first, last)) = spec.split_once('-') else { return ByteRange::Whole };
    let part = |start: u64, end: u64| ByteRange::Part { start, length: end - start + 1 };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        _ if spec.contains(',') => ByteRange::Whole,
        (Ok(start), _) if start >= size => ByteRange::Unsatisfiable,
        (Ok(start), Ok(end)) if end >= start => part(start, end.min(size - 1)),
        (Ok(start), Err(_)) if last.trim().is_empty() => part(start, size - 1),
        (Err(_), Ok(count)) if first.trim().is_empty() => match count {
            0 => ByteRange::Unsatisfiable,
            _ if size == 0 => ByteRange::Unsatisfiable,
            count => part(size.saturating_sub(count), size - 1),
        },
        _ => ByteRange::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mount(prefix: &str) -> StaticMount {
        StaticMount { prefix: prefix.into(), directory: "public".into(), fallback: None }
    }

    fn check(path: &str, expected: Option<&str>) {
        let mounts = [mount("/")];
        let found = resolve(&mounts, path.as_bytes());
        assert_eq!(found.map(|found| found[0].1.clone()).as_deref(), expected, "{path}");
    }

    #[test]
    fn paths_are_decoded_and_never_leave() {
        check("/", Some(""));
        check("/a/b.css?v=1", Some("a/b.css"));
        check("/a%20b", Some("a b"));
        check("/docs/", Some("docs/"));
        check("//a//b", Some("a/b"));
        check("/.well-known/x", Some(".well-known/x"));
        check("/%2eenv", Some(".env"));
        for bad in [
            "",
            "x",
            "/..",
            "/a/../b",
            "/%2e%2e/x",
            "/a%2f..%2fb",
            "/%",
            "/%zz",
            "/a%00",
            "/a\\b",
            "/%ff",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn the_longest_prefix_comes_first() {
        let mounts = [mount("/"), mount("/assets/")];
        let found = resolve(&mounts, b"/assets/x.js").unwrap();
        assert_eq!(found[0], (&mounts[1], "x.js".into()));
        assert_eq!(found[1], (&mounts[0], "assets/x.js".into()));
        assert_eq!(resolve(&mounts, b"/other").unwrap().len(), 1);
    }

    #[test]
    fn pages_are_told_from_what_they_load() {
        let browser = Some("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
        for (path, accept, expected) in [
            ("orders/7", None, true),
            ("orders/7", Some("*/*"), true),
            ("", None, true),
            ("assets/gone.js", None, false),
            ("assets/gone.js", Some("*/*"), false),
            ("v1.2/users", None, true),
            ("users/a.b", browser, true),
            ("users/a.b", Some("Text/HTML ; q=1"), true),
            ("users/a.b", Some("application/json"), false),
        ] {
            assert_eq!(wants_page(path, accept), expected, "{path} {accept:?}");
        }
    }

    #[test]
    fn ranges_are_read() {
        for (header, expected) in [
            ("bytes=0-3", ByteRange::Part { start: 0, length: 4 }),
            ("bytes=5-", ByteRange::Part { start: 5, length: 5 }),
            ("bytes=-3", ByteRange::Part { start: 7, length: 3 }),
            ("bytes=8-99", ByteRange::Part { start: 8, length: 2 }),
            ("bytes=-99", ByteRange::Part { start: 0, length: 10 }),
            ("bytes=10-", ByteRange::Unsatisfiable),
            ("bytes=-0", ByteRange::Unsatisfiable),
            ("bytes=3-1", ByteRange::Whole),
            ("bytes=0-1,3-4", ByteRange::Whole),
            ("lines=1-2", ByteRange::Whole),
        ] {
            assert_eq!(range(Some(header.as_bytes()), 10), expected, "{header}");
        }
        assert_eq!(range(None, 10), ByteRange::Whole);
    }

    proptest! {
        #[test]
        fn no_path_leaves_its_mount(path in "[/.%a2eEfF]{0,40}") {
            let mounts = [mount("/")];
            if let Some(found) = resolve(&mounts, path.as_bytes()) {
                for (_, path) in found {
                    prop_assert!(!path.starts_with('/'));
                    prop_assert!(path.split('/').all(|token| token != ".."));
                }
            }
        }

        #[test]
        fn ranges_lie_within_the_file(header in "bytes=[0-9]{0,20}-[0-9]{0,20}", size in 0u64..1000) {
            if let ByteRange::Part { start, length } = range(Some(header.as_bytes()), size) {
                prop_assert!(length > 0 && start + length <= size);
            }
        }
    }
}
