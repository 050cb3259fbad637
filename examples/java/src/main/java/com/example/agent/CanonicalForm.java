package com.example.agent;

import com.stateward.v1.*;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

/** The canonical form of a state: the same state has the same bytes in every language. */
final class CanonicalForm {
  private final ByteArrayOutputStream form = new ByteArrayOutputStream();

  CanonicalForm(Client.Head head) {
    sorted(head.slots()).forEach((name, value) -> {
      put("slot");
      put(name);
      put(value);
    });
    sorted(head.logs()).forEach((name, log) -> {
      put("log");
      put(name);
      put(log.getFirstIndex());
      put(log.getRewrittenVersion());
      put(log.getEntriesCount());
      log.getEntriesList().forEach(this::put);
    });
  }

  byte[] bytes() {
    return form.toByteArray();
  }

  /** By the bytes of the names in UTF-8. */
  private static <T> Map<byte[], T> sorted(Map<String, T> named) {
    var found = new TreeMap<byte[], T>(Arrays::compareUnsigned);
    named.forEach((name, each) -> found.put(name.getBytes(StandardCharsets.UTF_8), each));
    return found;
  }

  private void put(Value value) {
    put(value.getMediaType());
    switch (value.getContentCase()) {
      case DATA -> {
        put("data");
        put(value.getData().toByteArray());
      }
      case NUMBER -> {
        put("number");
        put(value.getNumber());
      }
      case BLOB -> {
        put("blob");
        put(value.getBlob().getSha256().toByteArray());
      }
      default -> {
        put("");
        put("");
      }
    }
  }

  private void put(long number) {
    put(Long.toString(number));
  }

  private void put(String field) {
    put(field.getBytes(StandardCharsets.UTF_8));
  }

  private void put(byte[] field) {
    form.writeBytes((field.length + ":").getBytes(StandardCharsets.US_ASCII));
    form.writeBytes(field);
  }
}
