//! One connection of the outside client: HTTP/1.1 over a plain socket, kept while it may be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time limit for an answer: longer than the platform lets anything wait, as a machine that
/// others use may stand still.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);
/// The most bytes of a body; the page is smaller.
const BODY_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 64;

pub struct Connection(BufReader<TcpStream>);

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub process: String,
    pub version: String,
}

#[derive(Debug)]
pub enum Fault {
    /// Nobody was there, or the connection ended before the answer did.
    Cut(String),
    /// The answer was complete, but not the right one.
    Wrong(String),
}

/// The fields of an answer's head.
#[derive(Debug, Default)]
struct Head {
    status: String,
    error: String,
    number: Option<u64>,
    process: Option<String>,
    version: Option<String>,
    length: Option<usize>,
    closes: bool,
}

impl Connection {
    /// Asks one request; opens a connection if there is none, and keeps it if it may be used again.
    pub fn ask(
        kept: &mut Option<Connection>,
        target: SocketAddr,
        host: &str,
        number: u64,
    ) -> Result<Answer, Fault> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(target).map_err(|error| cut("connecting", &error))?,
        };
        let request =
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Request-Number: {number}\r\n\r\n");
        let sent = connection.0.get_mut().write_all(request.as_bytes());
        sent.map_err(|error| cut("sending", &error))?;
        let head = connection.head()?;
        connection.body(head.length.ok_or_else(|| Fault::Wrong("no length".into()))?)?;
        if !head.closes {
            *kept = Some(connection);
        }
        if head.status != "200" {
            return Err(Fault::Wrong(format!("status {} {}", head.status, head.error)));
        }
        match (head.number, head.process, head.version) {
            (Some(answered), _, _) if answered != number => {
                Err(Fault::Wrong(format!("the answer to request {answered}")))
            }
            (Some(_), Some(process), Some(version)) => Ok(Answer { process, version }),
            _ => Err(Fault::Wrong("the answer does not say to what, and from whom".into())),
        }
    }

    fn open(target: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&target, CONNECT_TIME_MAX)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }

    fn line(&mut self) -> Result<String, Fault> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => Ok(line.trim_end().into()),
            Ok(_) => Err(Fault::Cut("it was closed before the answer ended".into())),
            Err(error) => Err(cut("reading", &error)),
        }
    }

    fn head(&mut self) -> Result<Head, Fault> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut head = Head { status, ..Head::default() };
        for _ in 0..HEADERS_MAX {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(head) };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "x-request-number" => head.number = value.parse().ok(),
                "x-instance" => head.process = Some(value.into()),
                "x-version" => head.version = Some(value.into()),
                "x-cortex-error" => head.error = value.into(),
                "content-length" => head.length = value.parse().ok(),
                "connection" => head.closes = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Err(Fault::Wrong("more headers than were expected".into()))
    }

    fn body(&mut self, length: usize) -> Result<(), Fault> {
        if length > BODY_BYTES_MAX {
            return Err(Fault::Wrong(format!("an answer of {length} bytes")));
        }
        self.0.read_exact(&mut vec![0; length]).map_err(|error| cut("reading", &error))
    }
}

fn cut(doing: &str, error: &std::io::Error) -> Fault {
    Fault::Cut(format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns what request 5 gets from a server with this answer, and whether the connection was
    /// kept.
    fn asked(answer: &'static str) -> (Result<Answer, Fault>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|size| size > 2) {
                line.clear();
            }
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let mut kept = None;
        let answer = Connection::ask(&mut kept, target, "page.localhost", 5);
        server.join().unwrap();
        (answer, kept.is_some())
    }

    const GOOD: &str = "HTTP/1.1 200 OK\r\nX-Request-Number: 5\r\nX-Instance: 7@a\r\n\
                        X-Version: 2\r\nContent-Length: 2\r\n\r\nhi";

    #[test]
    fn the_right_answer_is_one_to_this_number() {
        let answer = Answer { process: "7@a".into(), version: "2".into() };
        let (got, kept) = asked(GOOD);
        assert!(kept && got.is_ok_and(|got| got == answer));
        let other = "HTTP/1.1 200 OK\r\nX-Request-Number: 4\r\nContent-Length: 0\r\n\r\n";
        assert!(matches!(asked(other).0, Err(Fault::Wrong(why)) if why.contains("request 4")));
    }

    #[test]
    fn an_answer_that_ends_early_is_cut_and_another_status_wrong() {
        for early in ["", &GOOD[..20], &GOOD[..GOOD.len() - 1]] {
            assert!(matches!(asked(early), (Err(Fault::Cut(_)), false)), "{early}");
        }
        let busy = "HTTP/1.1 503 Busy\r\nX-Cortex-Error: node-lost\r\nContent-Length: 0\r\n\r\n";
        assert!(matches!(asked(busy).0, Err(Fault::Wrong(why)) if why == "status 503 node-lost"));
    }
}
