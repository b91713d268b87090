//! Chunks: no bytes panic; however a connection cuts them, the same content comes out and the same
//! is left over; and a plain reader of the standard agrees.

use router_core::http::HEADERS_MAX;
use router_core::http::body::Body;
use router_core::http::trailers::Trailers;

/// The length in bytes up to which each cut of an input is tried; for longer ones single bytes are.
const CUT_EVERYWHERE_MAX: usize = 256;

pub fn check(bytes: &[u8]) {
    let whole = read(&[bytes]);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single), whole, "byte by byte");
    if bytes.len() <= CUT_EVERYWHERE_MAX {
        for cut in 0..bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
    }
    match (&whole, plain(bytes)) {
        (Some(Read { taken, content, done: true }), Some((length, expected))) => {
            assert_eq!((*taken, content), (length, &expected));
        }
        (Some(Read { done, .. }), None) => assert!(!done, "more is taken than the standard has"),
        // Ours has limits on sizes, extensions and trailers.
        (None, Some((length, _))) => assert!(length > 15, "less is taken than the standard has"),
        (None, None) => {}
        (Some(Read { done: false, .. }), Some(_)) => panic!("the end is not seen"),
    }
}

#[derive(Debug, PartialEq)]
struct Read {
    taken: usize,
    content: Vec<u8>,
    done: bool,
}

/// Reads a body in pieces; returns `None` if it is malformed.
fn read(pieces: &[&[u8]]) -> Option<Read> {
    let (mut body, mut counted, mut anew) = (Body::chunked(), Body::chunked(), Body::chunked());
    let mut read = Read { taken: 0, content: Vec::new(), done: false };
    let (mut written, mut trailers) = (Vec::new(), Trailers::default());
    // Each trailer has at least a byte of a name, a colon and its end.
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let may_crowd = bytes > HEADERS_MAX * b"a:\r\n".len();
    let mut crowded = false;
    for piece in pieces {
        let taken = body.decode(piece, &mut read.content);
        assert_eq!(counted.accept(piece), taken);
        let reframed = anew.reframe(piece, &mut written, &mut trailers);
        crowded |= reframed.is_err() && taken.is_ok() && may_crowd;
        assert!(reframed == taken || crowded);
        read.taken += taken.ok()?;
        assert_eq!((counted, anew), (body, body));
    }
    read.done = body.is_done();
    assert_eq!(body.content(), read.content.len() as u64);
    if crowded {
        return Some(read);
    }
    // What is written anew has the same content, and nothing but digits, data, line ends and
    // trailers.
    let (mut again, mut content) = (Body::chunked(), Vec::new());
    assert_eq!(again.decode(&written, &mut content), Ok(written.len()));
    assert_eq!((content.as_slice(), again.is_done()), (read.content.as_slice(), read.done));
    Some(read)
}

/// Reads a body by RFC 9112, section 7.1, without limits. Returns its length and its content;
/// `None` if it is malformed or incomplete.
fn plain(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (mut rest, mut content) = (bytes, Vec::new());
    loop {
        let line = line(&mut rest)?;
        // White space before an extension is to be read (RFC 9110, 5.6.3), and only there.
        let digits = match line.iter().position(|byte| *byte == b';') {
            Some(end) => {
                let spaces = line[..end].iter().rev().take_while(|byte| b" \t".contains(byte));
                &line[..end - spaces.count()]
            }
            None => line,
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        content.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
    loop {
        let line = line(&mut rest)?;
        if line.is_empty() {
            return Some((bytes.len() - rest.len(), content));
        }
        let name = line.split(|byte| *byte == b':').next()?;
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if name.is_empty() || name.len() == line.len() || !name.iter().all(token) {
            return None;
        }
    }
}

/// Takes a line up to CR and LF; it must have no control bytes.
fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    let control = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
    (!line.iter().any(control)).then_some(line)
}
