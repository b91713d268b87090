//! Names that hold a hash of the content: such a file never changes under its name, so browsers
//! need not ask again. Assets of Rails, Django, webpack, Vite and the like.

/// Characters of a hash at least; a shorter run of digits and letters is a word or a number as
/// often as a hash.
const HASH_LENGTH_MIN: usize = 8;
/// Characters of a hash at most: SHA-512 in hexadecimal.
const HASH_LENGTH_MAX: usize = 128;

/// Returns whether the last part of the path is named so: `app-3f2a9c1b.js`,
/// `base.27e20196a850.css`, `index-BX9k3_aZ.js`, `main.3f2a9c1b.js.map`.
pub fn is_fingerprinted(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    // The first part is what people call it, the last what kind it is.
    let parts: Vec<&str> = name.split('.').collect();
    let Some((_, inner)) = parts.split_last() else { return false };
    inner.iter().enumerate().any(|(index, part)| {
        let after_dash = part.match_indices('-').map(|(at, _)| &part[at + 1..]);
        let whole = (index > 0).then_some(*part);
        after_dash.chain(whole).any(is_hash)
    })
}

/// Returns whether the text is a hash: hexadecimal with letters and digits, so that no date is
/// taken for it; or of larger alphabets, where capitals, small letters and digits meet.
fn is_hash(text: &str) -> bool {
    let bytes = text.as_bytes();
    let any = |class: fn(&u8) -> bool| bytes.iter().any(class);
    if !(HASH_LENGTH_MIN..=HASH_LENGTH_MAX).contains(&bytes.len()) || !any(u8::is_ascii_digit) {
        return false;
    }
    let hexadecimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let larger = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if bytes.iter().all(hexadecimal) {
        return any(u8::is_ascii_lowercase);
    }
    bytes.len() == HASH_LENGTH_MIN
        && bytes.iter().all(larger)
        && any(u8::is_ascii_uppercase)
        && any(u8::is_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_told_from_words_and_dates() {
        for path in [
            "/assets/application-9d4f2c8be6a1fd2a7f0e5b8c3d4e5f60718293a4b5c6d7e8f901a2b3c4d5e6f7.css",
            "/static/css/base.27e20196a850.css",
            "main.3f2a9c1b.js",
            "main.3f2a9c1b.js.map",
            "main.3f2a9c1b.chunk.js",
            "/assets/index-BX9k3_aZ.js",
            "logo-3f2a9c1b.svg",
        ] {
            assert!(is_fingerprinted(path), "{path}");
        }
        for path in [
            "/",
            "",
            "index.html",
            "jquery-3.7.1.min.js",
            "report-20240101.pdf",
            "jquery-ui-autocomplete.js",
            "deadbeef.js",
            "3f2a9c1b.js",
            "app-3f2a.js",
            "app-3f2a9c1b",
            "a/main.3f2a9c1b/index.html",
            "photo-DSC12345.jpg",
            "bootstrap-5.3.0-dist.zip",
        ] {
            assert!(!is_fingerprinted(path), "{path}");
        }
    }
}
