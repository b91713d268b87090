//! Answers of the router itself: short pages for people, one header for machines.

/// Seconds after which a client may ask again; one that asks sooner finds the same.
const RETRY_AFTER_SECONDS: u32 = 2;
/// The same where people are at work.
const MAINTENANCE_SECONDS: u32 = 60;

/// The field that has browsers ask for a password (RFC 7617).
const CHALLENGE: &[u8] = b"WWW-Authenticate: Basic realm=\"private\", charset=\"UTF-8\"\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    /// The value of `X-Cortex-Error`.
    pub reason: &'static str,
    pub text: &'static str,
    /// The commands of a node that the owner of an application can use.
    pub hint: &'static str,
}

pub const NO_APPLICATION: Page = Page {
    status: 404,
    reason: "no-application",
    text: "No application answers here. Check the address, or the list of domains of yours.",
    hint: "",
};
pub const NO_FILE: Page =
    Page { status: 404, reason: "no-file", text: "There is nothing under this address.", hint: "" };
/// The answer to a client that sends something to a site of files.
pub const FILES_ONLY: Page = Page {
    status: 405,
    reason: "files-only",
    text: "This site takes no data: it can only be read.",
    hint: "",
};
pub const STOPPED: Page = Page {
    status: 503,
    reason: "stopped",
    text: "This application is stopped.",
    hint: "Its owner can start it with `cortex scale web=1`.",
};
pub const NO_RELEASE: Page = Page {
    status: 503,
    reason: "no-release",
    text: "Nothing was released here yet.",
    hint: "Its owner finds out more with `cortex releases`.",
};
pub const BEING_BUILT: Page = Page {
    status: 503,
    reason: "being-built",
    text: "This site is being prepared here. Please try again in a moment.",
    hint: "",
};
pub const MAINTENANCE: Page = Page {
    status: 503,
    reason: "maintenance",
    text: "This application is closed for maintenance. Please come back a little later.",
    hint: "",
};
pub const PASSWORD: Page =
    Page { status: 401, reason: "password", text: "This site asks for a password.", hint: "" };
pub const TOO_MANY_GUESSES: Page = Page {
    status: 429,
    reason: "too-many-guesses",
    text: "Too many wrong passwords came from your address. Please try again in a while.",
    hint: "",
};
pub const QUEUE_FULL: Page = Page {
    status: 503,
    reason: "queue-full",
    text: "Too many requests wait for this application. Please try again in a moment.",
    hint: "",
};
pub const QUEUE_TIMEOUT: Page = Page {
    status: 503,
    reason: "queue-timeout",
    text: "This application had no free instance in time. Please try again in a moment.",
    hint: "",
};
pub const UNREACHABLE: Page = Page {
    status: 503,
    reason: "nodes-unreachable",
    text: "The machines that run this application do not answer.",
    hint: "Its owner finds out more with `cortex store peers`.",
};
pub const NO_BACK_END: Page = Page {
    status: 503,
    reason: "no-back-end",
    text: "No server behind this proxy accepts connections. Please try again in a moment.",
    hint: "",
};
pub const SHORT: Page = Page {
    status: 503,
    reason: "router-short",
    text: "This server has as many connections as it can have. Please try again in a moment.",
    hint: "",
};
pub const TOO_MANY_CONNECTIONS: Page = Page {
    status: 429,
    reason: "too-many-connections",
    text: "There are too many connections from your address. Please close some.",
    hint: "",
};
pub const NODE_LOST: Page = Page {
    status: 503,
    reason: "node-lost",
    text: "The machine that worked on this request was lost. It may have been carried out: please \
           look before you send it again.",
    hint: "",
};
pub const BAD_ANSWER: Page = Page {
    status: 502,
    reason: "bad-answer",
    text: "The application broke off before it answered.",
    hint: "Its owner finds out more with `cortex logs`.",
};
pub const ANSWER_TIMEOUT: Page = Page {
    status: 504,
    reason: "answer-timeout",
    text: "The application did not answer in time.",
    hint: "Its owner finds out more with `cortex logs`.",
};
pub const REQUEST_TIMEOUT: Page = Page {
    status: 408,
    reason: "request-timeout",
    text: "The request did not arrive in time.",
    hint: "",
};

pub const PLAIN_ON_TLS: Page = Page {
    status: 400,
    reason: "plain-on-tls",
    text: "This port speaks HTTPS. Write https:// instead of http:// in front of the address.",
    hint: "",
};

/// The answer to a client that asks on a connection for a name which it was not shown a certificate
/// for, or which is another team's: it asks again on a connection for that name (RFC 9110, section
/// 15.5.20).
pub const MISDIRECTED: Page = Page {
    status: 421,
    reason: "misdirected",
    text: "This connection is for another name. Please ask on a connection for this one.",
    hint: "",
};

pub const BODY_TOO_LARGE: Page = Page {
    status: 413,
    reason: "body-too-large",
    text: "The body of the request is larger than this application takes.",
    hint: "Its owner can raise `body_size` in `cortex.toml`.",
};
/// The answer to `OPTIONS` that were to go no further.
pub const FOR_ROUTER: Page = Page {
    status: 200,
    reason: "max-forwards",
    text: "The request was to go no further.",
    hint: "",
};

/// Returns the page that goes with a redirect: a method with a body is to be kept, which clients
/// promise with 308 alone.
pub fn redirect(method: &str) -> Page {
    let status = if matches!(method, "GET" | "HEAD") { 301 } else { 308 };
    let text = "This site is found by https:// in front of its address.";
    Page { status, reason: "https", text, hint: "" }
}

pub const fn bad_request(status: u16, text: &'static str) -> Page {
    Page { status, reason: "bad-request", text, hint: "" }
}

pub fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

impl Page {
    /// Returns the page for a router without a node whose commands could help.
    pub fn without_hint(self) -> Page {
        Page { hint: "", ..self }
    }

    pub fn write(&self, out: &mut Vec<u8>, head_only: bool, keep_alive: bool) {
        self.write_with(None, out, head_only, keep_alive);
    }

    /// Writes the page; `detail` is a paragraph of its own.
    pub fn write_with(
        &self,
        detail: Option<&str>,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) {
        self.write_to(None, detail, out, head_only, keep_alive);
    }

    /// Writes the page with the address that the client is to go to.
    pub fn write_to(
        &self,
        location: Option<&str>,
        detail: Option<&str>,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) {
        let Page { status, text, hint, .. } = self;
        let space = if hint.is_empty() { "" } else { " " };
        let phrase = phrase(*status);
        let detail = detail.map(|detail| format!("<p>{}</p>", escaped(detail))).unwrap_or_default();
        let body = format!(
            "<!doctype html><meta charset=utf-8><title>{status} {phrase}</title>\
             <style>body{{font:16px sans-serif;margin:15vh auto;max-width:34em;padding:0 1em}}\
             </style><h1>{phrase}</h1><p>{text}{space}{hint}</p>{detail}\n"
        );
        self.write_body(body.as_bytes(), location, out, head_only, keep_alive);
    }

    /// Writes a page of the application's own in this one's place, if it has one.
    pub fn write_own(
        &self,
        own: Option<&[u8]>,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) {
        match own {
            Some(own) => self.write_body(own, None, out, head_only, keep_alive),
            None => self.write(out, head_only, keep_alive),
        }
    }

    fn write_body(
        &self,
        body: &[u8],
        location: Option<&str>,
        out: &mut Vec<u8>,
        head_only: bool,
        keep_alive: bool,
    ) {
        use std::io::Write;
        let Page { status, reason, .. } = self;
        let phrase = phrase(*status);
        out.clear();
        // Writing to memory cannot fail.
        let _ = write!(
            out,
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/html; charset=utf-8\r\n\
             Content-Length: {}\r\nCache-Control: no-store\r\nX-Cortex-Error: {reason}\r\n",
            body.len()
        );
        if let Some(location) = location {
            let _ = write!(out, "Location: {location}\r\n");
        }
        if *reason == PASSWORD.reason {
            out.extend_from_slice(CHALLENGE);
        }
        if *reason == FILES_ONLY.reason {
            out.extend_from_slice(b"Allow: GET, HEAD\r\n");
        }
        if matches!(status, 429 | 503) {
            let is_closed = *reason == MAINTENANCE.reason;
            let seconds = if is_closed { MAINTENANCE_SECONDS } else { RETRY_AFTER_SECONDS };
            let _ = write!(out, "Retry-After: {seconds}\r\n");
        }
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let _ = write!(out, "Connection: {connection}\r\n\r\n");
        if !head_only {
            out.extend_from_slice(body);
        }
    }
}

/// Returns text without markup: what an application answered is in it, and a browser must not take
/// that for markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
