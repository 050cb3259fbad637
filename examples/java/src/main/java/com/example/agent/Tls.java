package com.example.agent;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;

/** TLS to a daemon's port, with the files that the environment names. */
final class Tls {
  /** Returns what a channel is opened with: plain text to a socket, and to a port without STATEWARD_TLS_CA. */
  static ChannelCredentials transport(String target) throws IOException {
    String ca = System.getenv("STATEWARD_TLS_CA");
    if (ca == null || ca.isEmpty() || target.startsWith("unix:")) {
      return InsecureChannelCredentials.create();
    }
    var credentials = TlsChannelCredentials.newBuilder().trustManager(readable("STATEWARD_TLS_CA", ca));
    String cert = System.getenv("STATEWARD_TLS_CERT");
    if (cert != null && !cert.isEmpty()) {
      File key = readable("STATEWARD_TLS_KEY", System.getenv("STATEWARD_TLS_KEY"));
      credentials.keyManager(readable("STATEWARD_TLS_CERT", cert), key);
    }
    return credentials.build();
  }

  private static File readable(String variable, String path) {
    if (path == null || !new File(path).canRead()) {
      System.err.println(variable + ": cannot read " + path);
      System.exit(1);
    }
    return new File(path);
  }

  private Tls() {}
}
