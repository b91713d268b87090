//! The verdict on what a peer did with a case, beside what the router does with it, in a word or
//! two.

use std::fmt::Write;

use router_core::http::body::Body;
use router_core::http::request::{ForwardedFields, RequestOrigin, parse as parse_request};
use router_core::http::response::{AnsweredRequest, parse as parse_response};

use super::super::case::{Case, Folder};
use super::super::instance::request_bytes;
use super::play::{Answered, End, Played};

/// The classes of verdicts, in the order of what a reader should look at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It passes on what the router would refuse to read: two readers may read it in two ways.
    Unsafe,
    /// It passes on what the router refuses, in a form that has one meaning.
    Laxer,
    /// It refuses what the router passes on.
    Stricter,
    /// Both pass something on, but not the same.
    Other,
    /// Both refuse, or both pass on the same meaning.
    Same,
}

impl Class {
    pub const ALL: [Class; 5] =
        [Class::Same, Class::Stricter, Class::Laxer, Class::Unsafe, Class::Other];

    pub fn word(self) -> &'static str {
        match self {
            Class::Unsafe => "unsafe",
            Class::Laxer => "laxer",
            Class::Stricter => "stricter",
            Class::Other => "other",
            Class::Same => "same",
        }
    }

    /// Returns what the manual says of the class.
    pub fn means(self) -> &'static str {
        match self {
            Class::Unsafe => "passed on in a form that the router would refuse to read",
            Class::Laxer => "refused by the router, passed on in a form with one meaning",
            Class::Stricter => "passed on by the router, refused by it",
            Class::Other => "passed on by both, but not the same",
            Class::Same => "both refuse it, or pass on the same",
        }
    }
}

#[derive(Clone)]
pub struct Verdict {
    pub class: Class,
    /// The statuses and ends, as in the line `=`.
    words: String,
    /// The bytes that came out at the other side, where they are of interest.
    shown: Vec<u8>,
}

impl Verdict {
    /// Returns the verdict as it stands in the case's file.
    pub fn lines(&self, name: &str) -> String {
        let mut text = format!("{name}: {} {}", self.class.word(), self.words);
        text.truncate(text.trim_end().len());
        text.push('\n');
        for line in escaped(&self.shown) {
            writeln!(text, "{name} | {line}").unwrap();
        }
        text
    }
}

pub fn judge(folder: Folder, case: &Case, played: &Played) -> Verdict {
    match folder {
        Folder::Requests => judge_request(case, played),
        Folder::Answers => judge_answer(case, played),
    }
}

fn judge_request(case: &Case, played: &Played) -> Verdict {
    let replies = replies(&played.answered, case.is_head());
    let mut words: Vec<String> = replies.iter().map(Reply::word).collect();
    match (played.by_itself, played.answered.end) {
        (true, _) => words.push("closed".into()),
        (false, None) => words.push("waits".into()),
        (false, Some(_)) if replies.is_empty() => words.push("ended".into()),
        (false, Some(_)) => {}
    }
    let (ours, theirs) = (meanings(&case.got), meanings(&played.got));
    let is_refusal = |status: Option<u16>| status.is_none_or(|status| status >= 400);
    let last =
        case.outcome.iter().filter_map(|word| word.trim_end_matches('h').parse().ok()).next_back();
    let agree = is_refusal(last) == is_refusal(replies.last().and_then(|reply| reply.status));
    // That nobody answers to this name is no refusal of the message.
    let refused = last.is_some_and(|status| status >= 400 && status != 404);
    let class = if ours == theirs && agree {
        Class::Same
    } else if !is_sound(&played.got) {
        Class::Unsafe
    } else if theirs.len() > ours.len() && refused {
        Class::Laxer
    } else if theirs.len() < ours.len() {
        Class::Stricter
    } else {
        Class::Other
    };
    let is_shown = !matches!(class, Class::Same | Class::Stricter);
    let shown = if is_shown { played.got.clone() } else { Vec::new() };
    Verdict { class, words: unless_same(&words, &case.outcome), shown }
}

fn judge_answer(case: &Case, played: &Played) -> Verdict {
    let replies = replies(&played.answered, case.is_head());
    let mut words: Vec<String> = replies.iter().map(Reply::word).collect();
    let is_last = |reply: &Reply| reply.status.is_none_or(|status| status == 101 || status >= 200);
    if !replies.last().is_some_and(is_last) {
        words.push(early(&played.answered).word().into());
    }
    let ours = &case.outcome[1..];
    let was = |word: &str| ours.iter().any(|one| one == word);
    // No instance of the corpus answers with an error.
    let is_pass = |words: &[String]| {
        let mut statuses = words.iter().filter_map(|word| word.parse::<u16>().ok());
        let last = statuses.next_back().is_some_and(|status| status < 400);
        last && !words.iter().any(|word| ["cut", "waits"].contains(&word.as_str()))
    };
    let passed = is_pass(&words);
    if passed && (was("reused") || was("fresh")) {
        words.push(if played.reused { "reused" } else { "fresh" }.into());
    }
    let body = case.body.as_ref().filter(|body| !body.is_empty());
    let same_body = body.is_none_or(|body| replies.last().is_some_and(|last| last.body == *body));
    let malformed = replies.iter().any(|reply| reply.state == State::Malformed);
    let class = match (is_pass(ours), passed) {
        _ if malformed => Class::Unsafe,
        (false, false) => Class::Same,
        (false, true) => Class::Laxer,
        (true, false) => Class::Stricter,
        (true, true) if words == ours && same_body => Class::Same,
        (true, true) if was("fresh") && played.reused => Class::Unsafe,
        (true, true) => Class::Other,
    };
    let is_shown = !matches!(class, Class::Same | Class::Stricter);
    let shown = if is_shown { plain(&played.answered.bytes) } else { Vec::new() };
    Verdict { class, words: unless_same(&words, ours), shown }
}

fn unless_same(words: &[String], ours: &[String]) -> String {
    let bare = |word: &str| match word.strip_suffix('h') {
        Some(status) if status.parse::<u16>().is_ok() => status.to_owned(),
        _ => word.to_owned(),
    };
    let ours: Vec<String> = ours.iter().map(|word| bare(word)).collect();
    if words == ours {
        return String::new();
    }
    let runs = words.chunk_by(|one, other| one == other);
    let shown = runs.map(|run| match run.len() {
        count if count >= COUNTED_FROM => format!("{}*{count}", run[0]),
        _ => run.join(" "),
    });
    shown.collect::<Vec<String>>().join(" ")
}

/// One request as an instance understands it, however it is framed, whoever passed it on.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    line: String,
    /// The fields by name; those of one name in their order.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<u8>,
}

/// The fields that speak of the connection, of the frame and of who asks.
const OF_EACH: [&str; 8] = [
    "connection",
    "keep-alive",
    "content-length",
    "transfer-encoding",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "expect",
];

/// Returns the meanings of the requests that came whole.
fn meanings(mut bytes: &[u8]) -> Vec<Meaning> {
    let mut meanings = Vec::new();
    while let Some(length) = request_bytes(bytes) {
        meanings.push(meaning(&bytes[..length]));
        bytes = &bytes[length..];
    }
    meanings
}

fn meaning(bytes: &[u8]) -> Meaning {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let (head, _) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    let fields = fields.split("\r\n").filter(|field| !field.is_empty());
    let fields = fields.map(|field| field.split_once(':').unwrap_or((field, "")));
    let fields = fields.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let mut fields: Vec<(String, String)> = fields.collect();
    let is_chunked = fields.iter().any(|(name, _)| name == "transfer-encoding");
    fields.retain(|(name, value)| {
        let made_up = name == "x-request-id" && value == "ID";
        !made_up && !OF_EACH.contains(&name.as_str())
    });
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    for (name, value) in &mut fields {
        if name == "host" {
            value.make_ascii_lowercase();
        }
    }
    let rest = &bytes[bytes.len().min(head.len() + 4)..];
    let (mut body, mut trailers) = (rest.to_vec(), Vec::new());
    if is_chunked {
        body.clear();
        let last = rest.windows(3).rposition(|part| part == b"0\r\n").unwrap_or(0);
        trailers.extend(&rest[rest.len().min(last + 3)..]);
        // What cannot be read is left as it came.
        if Body::chunked().decode(rest, &mut body).is_err() {
            body = rest.to_vec();
        }
    }
    if trailers == b"\r\n" {
        trailers.clear();
    }
    // Which of the two is spoken concerns one connection, and names have no case.
    let line = match line.strip_suffix(" HTTP/1.0") {
        Some(start) => format!("{start} HTTP/1.1"),
        None => line.to_owned(),
    };
    trailers.make_ascii_lowercase();
    Meaning { line, fields, body, trailers }
}

/// Returns whether the router itself would read all of it.
fn is_sound(mut bytes: &[u8]) -> bool {
    let origin = RequestOrigin {
        peer: [127, 0, 0, 1].into(),
        request_id: 0,
        is_router: false,
        is_secure: false,
        forwarded: ForwardedFields::Nothing,
    };
    loop {
        match parse_request(bytes, &origin, &mut Vec::new()) {
            // Other statuses are a matter of limits and of what is served at all.
            Err(refusal) if [400, 505].contains(&refusal.0) => return false,
            Ok(Some(mut head)) => {
                let rest = &bytes[head.length..];
                let Ok(taken) = head.body.accept(rest) else { return false };
                if !head.body.is_done() {
                    return true;
                }
                bytes = &rest[taken..];
            }
            Ok(None) | Err(_) => return true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// It ends early, and one sees it.
    Cut,
    /// There should be more, and nobody ends it.
    Waits,
    /// No client could be sure what it is.
    Malformed,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Whole => "whole",
            State::Cut => "cut",
            State::Waits => "waits",
            State::Malformed => "malformed",
        }
    }
}

struct Reply {
    status: Option<u16>,
    body: Vec<u8>,
    state: State,
}

impl Reply {
    fn word(&self) -> String {
        match (self.state, self.status) {
            (State::Whole, Some(status)) => status.to_string(),
            (state, _) => state.word().to_owned(),
        }
    }
}

/// Returns the state of an answer that lacks something.
fn early(answered: &Answered) -> State {
    if answered.end.is_some() { State::Cut } else { State::Waits }
}

fn replies(answered: &Answered, head: bool) -> Vec<Reply> {
    let asked = AnsweredRequest {
        head,
        modern: true,
        keep_alive: true,
        transparent: true,
        of_router: true,
    };
    let early = early(answered);
    let (mut replies, mut bytes) = (Vec::new(), &answered.bytes[..]);
    while !bytes.is_empty() {
        let mut reply = Reply { status: None, body: Vec::new(), state: early };
        match parse_response(bytes, asked, &mut Vec::new()) {
            Ok(Some(mut parsed)) => {
                reply.status = Some(parsed.status);
                let rest = &bytes[parsed.length..];
                let taken = parsed.body.decode(rest, &mut reply.body);
                let until_end = parsed.body == Body::UntilClose;
                reply.state = match taken {
                    Err(_) => State::Malformed,
                    Ok(_) if parsed.status == 101 || parsed.body.is_done() => State::Whole,
                    Ok(_) if until_end && answered.end == Some(End::Closed) => State::Whole,
                    Ok(_) => early,
                };
                bytes = &rest[taken.unwrap_or(rest.len())..];
            }
            Ok(None) => bytes = &[],
            Err(_) => (bytes, reply.state) = (&[], State::Malformed),
        }
        let is_last = reply.state != State::Whole;
        replies.push(reply);
        if is_last {
            break;
        }
    }
    replies
}

/// Returns an answer without what each server says of itself and of the time.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let of_itself = |line: &&[u8]| !line.starts_with(b"Server: ") && !line.starts_with(b"Date: ");
    lines.filter(of_itself).flatten().copied().collect()
}

/// The numbers of equal words, lines or pairs of lines, and of equal bytes, from which they are
/// counted.
const COUNTED_FROM: usize = 4;
const BYTES_COUNTED_FROM: usize = 40;

/// Returns a line for each line, in the escapes of the corpus.
fn escaped(bytes: &[u8]) -> Vec<String> {
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut shown, mut rest) = (Vec::new(), &lines[..]);
    while let Some(first) = rest.first() {
        let repeats = |period: usize| {
            let part = rest.get(..period)?;
            let count = rest.chunks(period).take_while(|next| *next == part).count();
            (count >= COUNTED_FROM).then_some((period, count))
        };
        let Some((period, count)) = repeats(1).or_else(|| repeats(2)) else {
            shown.push(escaped_line(first));
            rest = &rest[1..];
            continue;
        };
        let part: String = rest[..period].iter().map(|line| escaped_line(line)).collect();
        shown.push(format!("\\*{count};{part};"));
        rest = &rest[period * count..];
    }
    shown
}

fn escaped_line(line: &[u8]) -> String {
    let byte = |byte: u8| match byte {
        b'\r' => "\\r".to_owned(),
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(byte).to_string(),
        other => format!("\\x{other:02x}"),
    };
    let runs = line.chunk_by(|one, other| one == other);
    let shown = runs.map(|run| match run.len() {
        count if count >= BYTES_COUNTED_FROM => format!("\\*{count};{};", byte(run[0])),
        count => byte(run[0]).repeat(count),
    });
    shown.collect()
}
