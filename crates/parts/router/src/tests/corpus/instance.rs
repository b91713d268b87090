//! The instance of a case: it keeps what comes, and answers as it is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::super::world::{Backend, Client, ok};

const HEAD_ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
const READ_BYTES: usize = 16 << 10;

/// The act of the instance after its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Keeps,
    Closes,
    Resets,
}

impl Then {
    pub fn named(word: &str) -> Then {
        match word {
            "keeps" => Then::Keeps,
            "closes" => Then::Closes,
            "resets" => Then::Resets,
            other => panic!("an instance keeps, closes or resets, not {other}"),
        }
    }
}

/// The way in which it answers each request.
#[derive(Clone, Debug)]
pub enum Answer {
    Hello,
    These(Vec<u8>, Then),
}

struct Scene {
    answer: Answer,
    /// All that came since it began.
    got: Vec<u8>,
    /// Cancelled when the next one begins.
    over: CancellationToken,
}

pub struct Instance {
    pub backend: Backend,
    scene: Arc<Mutex<Scene>>,
}

impl Instance {
    pub async fn start(answer: Answer) -> Instance {
        let over = CancellationToken::new();
        let scene = Arc::new(Mutex::new(Scene { answer, got: Vec::new(), over }));
        let shared = scene.clone();
        let backend = Backend::start(move |client| {
            let scene = shared.clone();
            async move {
                let over = scene.lock().unwrap().over.clone();
                over.run_until_cancelled(serve(client, &scene)).await;
            }
        });
        Instance { backend: backend.await, scene }
    }

    /// Begins another case: connections of the one before are closed.
    pub fn begin(&self, answer: Answer) {
        let over = CancellationToken::new();
        let mut scene = self.scene.lock().unwrap();
        std::mem::replace(&mut *scene, Scene { answer, got: Vec::new(), over }).over.cancel();
    }

    /// Forgets what came so far, which is none of what comes now.
    pub fn forget(&self) {
        self.scene.lock().unwrap().got.clear();
    }

    pub fn got(&self) -> Vec<u8> {
        self.scene.lock().unwrap().got.clone()
    }

    pub fn got_bytes(&self) -> usize {
        self.scene.lock().unwrap().got.len()
    }
}

async fn serve(mut client: Client, scene: &Mutex<Scene>) {
    let (mut pending, mut piece) = (Vec::new(), vec![0; READ_BYTES]);
    loop {
        while let Some(length) = request_bytes(&pending) {
            let is_head = pending.starts_with(b"HEAD ");
            pending.drain(..length);
            let answer = scene.lock().unwrap().answer.clone();
            let (bytes, then) = match answer {
                Answer::Hello if is_head => (HEAD_ANSWER.into(), Then::Keeps),
                Answer::Hello => (ok("hello").into_bytes(), Then::Keeps),
                Answer::These(bytes, then) => (bytes, then),
            };
            let written = client.0.write_all(&bytes).await;
            if then == Then::Resets {
                socket2::SockRef::from(&client.0).set_linger(Some(Duration::ZERO)).ok();
            }
            if then != Then::Keeps || written.is_err() {
                return;
            }
        }
        match client.0.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                scene.lock().unwrap().got.extend(&piece[..count]);
                pending.extend(&piece[..count]);
            }
        }
    }
}

/// Returns where the first request of these bytes ends, in whatever framing it came; `None` before
/// that.
pub fn request_bytes(bytes: &[u8]) -> Option<usize> {
    let end = b"\r\n\r\n";
    let find = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).position(|at| at == part);
    let head = find(bytes, end)? + end.len();
    let fields = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
    let length = fields.split("\r\ncontent-length:").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.trim().parse::<usize>().ok());
    let whole = match length {
        Some(length) => head + length,
        None if fields.contains("\r\ntransfer-encoding: chunked") => {
            // The last chunk may begin where the head ends; trailers follow it.
            let last = head - 2 + find(&bytes[head - 2..], b"\r\n0\r\n")?;
            let trailers = last + b"\r\n0".len();
            trailers + find(&bytes[trailers..], end)? + end.len()
        }
        None => head,
    };
    (whole <= bytes.len()).then_some(whole)
}
