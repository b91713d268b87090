//! Paths of static files: whatever a client asks for, the file lies below its mount. What else is
//! read from a request for a file is fuzzed too.

use std::path::{Component, Path};

use model::never_public::{ServedAs, is_kept_back};
use model::release::StaticMount;
use router_core::files::coding::{self, Coding};
use router_core::files::fingerprint::is_fingerprinted;
use router_core::files::{ByteRange, content_type, range, resolve};

pub fn check(bytes: &[u8]) {
    let mount = |prefix: &str| StaticMount {
        prefix: prefix.into(),
        directory: "public".into(),
        fallback: None,
    };
    let mounts = [mount("/"), mount("/assets/"), mount("/assets/deep/")];
    if let Some(found) = resolve(&mounts, bytes) {
        let mut last = usize::MAX;
        for (mount, path) in found {
            assert!(mount.prefix.len() <= last, "the longest prefix comes first");
            last = mount.prefix.len();
            // Joining an absolute path would leave the directory.
            let parts: Vec<_> = Path::new(&path).components().collect();
            assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
            assert!(!path.contains(['\\', '\0', '\n']) && !path.contains("//"), "{path:?}");
            let is_open = |name: &str| name.eq_ignore_ascii_case(".well-known");
            let hidden = path.split('/').any(|name| name.starts_with('.') && !is_open(name));
            assert!(!hidden || is_kept_back(&path, ServedAs::Directory), "{path:?}");
            is_fingerprinted(&path);
            assert!(!content_type(&path).is_empty());
        }
    }
    for size in [0, 1, 1000, u64::MAX] {
        if let ByteRange::Part { start, length } = range(Some(bytes), size) {
            assert!(length > 0 && start.checked_add(length).is_some_and(|end| end <= size));
        }
    }
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(coding::choose(Some(&text), |_| false), None);
    let chosen = coding::choose(Some(&text), |coding| coding == Coding::Gzip);
    assert!(matches!(chosen, None | Some(Coding::Gzip)));
}
