//! Static files, from memory where they are small. The disk is read by a pool of other threads,
//! never by the router's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use model::release::StaticMount;
use router::files::{INDEX, Range, content_type, range};
use time::OffsetDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;
use tokio::runtime::Handle;

use super::connection::WRITE_TIME_MAX;
use super::pages::phrase;
use super::stream::write_all;
use super::table::Roots;
use super::wire::Wire;

/// Larger files are read piece by piece while they are sent.
const SMALL_BYTES_MAX: u64 = 256 * 1024;
const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Releases do not change; persistent directories do, and are looked at again after this time.
const CACHE_TIME_MAX: Duration = Duration::from_secs(1);
/// While it is read again, for as long as that may take.
const STALE_TIME_MAX: Duration = Duration::from_secs(2);
const PIECE_BYTES: usize = 256 * 1024;

const HTTP_DATE: &[FormatItem<'_>] = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// Shared by all threads.
pub struct Files {
    blocking: Handle,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// By the bytes of their paths: those are compared faster than their components.
    files: BTreeMap<OsString, Cached>,
    bytes: usize,
}

struct Cached {
    found: Arc<Found>,
    read_at: Instant,
    /// Somebody is reading it again; one is enough.
    being_read: bool,
}

struct Found {
    content: Content,
    size: u64,
    content_type: &'static str,
    etag: String,
    modified: String,
}

enum Content {
    Small(Bytes),
    Large(PathBuf),
    /// Nothing is there; remembered too, as many requests go on to the application.
    Missing,
    /// A directory asked for without its final `/`.
    Directory,
}

/// What the client has already.
#[derive(Default)]
pub struct Conditions {
    none_match: Option<String>,
    modified_since: Option<String>,
    range: Option<String>,
    if_range: Option<String>,
}

impl Conditions {
    pub fn read(head: &[u8]) -> Conditions {
        let mut headers = [httparse::EMPTY_HEADER; super::http::HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let mut conditions = Conditions::default();
        if request.parse(head).is_err() {
            return conditions;
        }
        for header in request.headers {
            let name = header.name;
            let field = match name.len() {
                13 if name.eq_ignore_ascii_case("if-none-match") => &mut conditions.none_match,
                17 if name.eq_ignore_ascii_case("if-modified-since") => {
                    &mut conditions.modified_since
                }
                5 if name.eq_ignore_ascii_case("range") => &mut conditions.range,
                8 if name.eq_ignore_ascii_case("if-range") => &mut conditions.if_range,
                _ => continue,
            };
            *field = std::str::from_utf8(header.value).ok().map(|value| value.trim().into());
        }
        conditions
    }

    fn is_unchanged(&self, found: &Found) -> bool {
        match (&self.none_match, &self.modified_since) {
            (Some(tags), _) => tags.split(',').any(|tag| {
                let tag = tag.trim();
                tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == found.etag
            }),
            // Clients send back what they were told.
            (None, Some(since)) => *since == found.modified,
            (None, None) => false,
        }
    }
}

pub struct Answer {
    found: Arc<Found>,
    conditions: Conditions,
    redirect: bool,
}

/// None when no file answers and the application is asked.
pub async fn find(
    files: &Arc<Files>,
    roots: &Roots,
    candidates: &[(&StaticMount, String)],
    conditions: Conditions,
) -> Option<Answer> {
    for (mount, path) in candidates {
        let directory = roots.release.join(&mount.directory);
        let asked = directory.join(path);
        let asked = if path.is_empty() || path.ends_with('/') { asked.join(INDEX) } else { asked };
        let mut found = files.open(asked, roots).await?;
        let mut redirect = false;
        if matches!(found.content, Content::Directory) {
            redirect = true;
        } else if matches!(found.content, Content::Missing)
            && let Some(fallback) = &mount.fallback
        {
            found = files.open(directory.join(fallback), roots).await?;
        }
        if !matches!(found.content, Content::Missing) {
            return Some(Answer { found, conditions, redirect });
        }
    }
    None
}

impl Files {
    /// `blocking` is a runtime whose pool reads the disk.
    pub fn new(blocking: Handle) -> Files {
        Files { blocking, cache: Mutex::default() }
    }

    /// None when the disk's pool is gone.
    async fn open(self: &Arc<Files>, path: PathBuf, roots: &Roots) -> Option<Arc<Found>> {
        if let Some(found) = self.lock().get(path.as_os_str()) {
            return Some(found);
        }
        let (files, roots) = (self.clone(), roots.clone());
        let task = self.blocking.spawn_blocking(move || {
            let found = Arc::new(read(&path, &roots));
            files.lock().put(path, found.clone());
            found
        });
        task.await.ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// None for whoever is to read it from the disk; meanwhile others get what was there.
    fn get(&mut self, path: &OsStr) -> Option<Arc<Found>> {
        let cached = self.files.get_mut(path)?;
        let age = cached.read_at.elapsed();
        let good = age < CACHE_TIME_MAX || (cached.being_read && age < STALE_TIME_MAX);
        cached.being_read |= !good;
        good.then(|| cached.found.clone())
    }

    fn put(&mut self, path: PathBuf, found: Arc<Found>) {
        let path = path.into_os_string();
        let cost = |path: &OsStr, found: &Found| {
            let content = if let Content::Small(bytes) = &found.content { bytes.len() } else { 0 };
            content + path.len() + 256
        };
        if let Some(old) = self.files.remove(&path) {
            self.bytes -= cost(&path, &old.found);
        }
        self.bytes += cost(&path, &found);
        let cached = Cached { found, read_at: Instant::now(), being_read: false };
        self.files.insert(path, cached);
        while self.bytes > CACHE_BYTES_MAX {
            // Whatever comes first: what is asked for is read again at once.
            let Some((path, old)) = self.files.pop_first() else { break };
            self.bytes -= cost(&path, &old.found);
        }
    }
}

fn read(path: &Path, roots: &Roots) -> Found {
    open(path, roots).unwrap_or_else(|| Found {
        content: if path.is_dir() && is_inside(path, roots).is_some() {
            Content::Directory
        } else {
            Content::Missing
        },
        size: 0,
        content_type: "",
        etag: String::new(),
        modified: String::new(),
    })
}

/// Links are followed, but not out of the application's own directories.
fn is_inside(path: &Path, roots: &Roots) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let inside = [&roots.release, &roots.persist]
        .into_iter()
        .any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
    inside.then_some(real)
}

fn open(path: &Path, roots: &Roots) -> Option<Found> {
    let real = is_inside(path, roots)?;
    let file = File::open(&real).ok()?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let size = metadata.len();
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let age = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let content = if size <= SMALL_BYTES_MAX {
        let mut bytes = Vec::new();
        // A file that grows meanwhile must not fill the memory.
        file.take(SMALL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Content::Small(bytes.into())
    } else {
        Content::Large(real)
    };
    let size = if let Content::Small(bytes) = &content { bytes.len() as u64 } else { size };
    Some(Found {
        content,
        size,
        content_type: content_type(&path.to_string_lossy()),
        etag: format!("\"{:x}-{size:x}\"", age.as_nanos()),
        modified: OffsetDateTime::from(modified).format(HTTP_DATE).unwrap_or_default(),
    })
}

impl Answer {
    /// The status, and how many bytes were sent if all were.
    pub async fn send(
        self,
        files: &Arc<Files>,
        client: &Wire,
        head_only: bool,
        keep_alive: bool,
        out: &mut Vec<u8>,
    ) -> (u16, Option<u64>) {
        let found = &*self.found;
        let whole = self.conditions.if_range.as_ref().is_none_or(|tag| *tag == found.etag);
        let asked = self.conditions.range.as_deref().filter(|_| whole).map(str::as_bytes);
        let (status, start, length) = match range(asked, found.size) {
            _ if self.redirect => (308, 0, 0),
            _ if self.conditions.is_unchanged(found) => (304, 0, 0),
            Range::Whole => (200, 0, found.size),
            Range::Part { start, length } => (206, start, length),
            Range::Unsatisfiable => (416, 0, 0),
        };
        let target = if self.redirect { request_path(out) } else { String::new() };
        write_head(out, found, status, start, length, keep_alive, target);
        let body = if head_only { 0 } else { length };
        let sent = match &found.content {
            _ if body == 0 => write_all(client, out, WRITE_TIME_MAX).await.is_ok(),
            Content::Small(bytes) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(usize::try_from(body).unwrap_or(usize::MAX));
                out.extend_from_slice(&bytes[start..end.min(bytes.len())]);
                write_all(client, out, WRITE_TIME_MAX).await.is_ok()
            }
            Content::Large(path) => {
                write_all(client, out, WRITE_TIME_MAX).await.is_ok()
                    && send_large(files, client, path.clone(), start, body).await.is_some()
            }
            Content::Missing | Content::Directory => false,
        };
        (status, sent.then_some(body))
    }
}

/// The path that was asked for, from the head as it was written for an instance.
fn request_path(out: &[u8]) -> String {
    let target = out.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    String::from_utf8_lossy(target.split(|byte| *byte == b'?').next().unwrap_or_default()).into()
}

fn write_head(
    out: &mut Vec<u8>,
    found: &Found,
    status: u16,
    start: u64,
    length: u64,
    keep_alive: bool,
    target: String,
) {
    use std::io::Write;
    let phrase = if status == 308 { "Permanent Redirect" } else { phrase(status) };
    out.clear();
    // Writing to memory cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {phrase}\r\n");
    if status == 308 {
        // One `/` in front: `//host` would lead elsewhere.
        let _ = write!(out, "Location: /{}/\r\n", target.trim_matches('/'));
    } else {
        let (etag, modified) = (&found.etag, &found.modified);
        let _ =
            write!(out, "ETag: {etag}\r\nLast-Modified: {modified}\r\nAccept-Ranges: bytes\r\n");
    }
    if matches!(status, 200 | 206) {
        let _ = write!(out, "Content-Type: {}\r\n", found.content_type);
    }
    if status == 206 {
        let last = start + length - 1;
        let _ = write!(out, "Content-Range: bytes {start}-{last}/{}\r\n", found.size);
    } else if status == 416 {
        let _ = write!(out, "Content-Range: bytes */{}\r\n", found.size);
    }
    if status != 304 {
        let _ = write!(out, "Content-Length: {length}\r\n");
    }
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let _ = write!(out, "Connection: {connection}\r\n\r\n");
}

async fn send_large(
    files: &Arc<Files>,
    client: &Wire,
    path: PathBuf,
    start: u64,
    mut left: u64,
) -> Option<()> {
    let open = move || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok::<_, std::io::Error>(file)
    };
    let mut file = files.blocking.spawn_blocking(open).await.ok()?.ok()?;
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let read = files.blocking.spawn_blocking(move || {
            let count = file.read(&mut piece[..want]);
            (file, piece, count)
        });
        let count;
        (file, piece, count) = read.await.ok()?;
        let count = count.ok().filter(|count| *count > 0)?;
        write_all(client, &piece[..count], WRITE_TIME_MAX).await.ok()?;
        left -= count as u64;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Arc<Found> {
        Arc::new(Found {
            content: Content::Missing,
            size: 0,
            content_type: "",
            etag: String::new(),
            modified: String::new(),
        })
    }

    #[test]
    fn one_reads_again_while_others_get_what_was_there() {
        let mut cache = Cache::default();
        assert!(cache.get("a".as_ref()).is_none());
        cache.put("a".into(), found());
        assert!(cache.get("a".as_ref()).is_some());
        let age = |cache: &mut Cache, age| {
            cache.files.values_mut().for_each(|one| one.read_at -= age);
        };
        age(&mut cache, CACHE_TIME_MAX);
        assert!(cache.get("a".as_ref()).is_none(), "the first one reads");
        assert!(cache.get("a".as_ref()).is_some(), "the others do not");
        age(&mut cache, STALE_TIME_MAX);
        assert!(cache.get("a".as_ref()).is_none(), "but not for long");
        cache.put("a".into(), found());
        assert!(cache.get("a".as_ref()).is_some());
        assert_eq!(cache.bytes, 257);
    }
}
