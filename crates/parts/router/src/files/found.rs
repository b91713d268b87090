//! The target of a path, as far as an answer needs it: a file, a directory, or nothing. It knows no
//! disk and no client.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use router_core::files::coding::Coding;

/// The result of looking up a path.
pub struct Found {
    pub content: Content,
    /// The answer with a small file that most clients get, head and content. `content` is a part of
    /// it.
    pub answer: Bytes,
    pub size: u64,
    pub content_type: &'static str,
    pub etag: String,
    pub modified: String,
    /// The same time in seconds.
    pub changed_at: i64,
    /// Whether its content never changes under this name.
    pub lasts: bool,
    /// The further forms of it that lie beside it.
    pub codings: Vec<Coding>,
}

impl Found {
    pub fn missing() -> Found {
        Found {
            content: Content::Missing,
            answer: Bytes::new(),
            size: 0,
            content_type: "",
            etag: String::new(),
            modified: String::new(),
            changed_at: 0,
            lasts: false,
            codings: Vec::new(),
        }
    }

    pub fn is_file(&self) -> bool {
        matches!(self.content, Content::Small(_) | Content::Large(_))
    }
}

/// The content that a path leads to.
pub enum Content {
    Small(Bytes),
    Large(Arc<File>),
    /// Nothing is there; remembered too, as many requests go on to the application.
    Missing,
    /// A directory asked for without its final `/`.
    Directory,
}
